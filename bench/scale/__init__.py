"""The cores of a whole deployment in virtual time: what a stream costs at a thousand streams and at a million."""
