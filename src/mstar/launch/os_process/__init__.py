"""Child processes of this operating system: pipes, exits, output, and kills for lack of memory."""
