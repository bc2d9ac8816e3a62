"""Live calls over several servers while processes and hosts are killed."""
