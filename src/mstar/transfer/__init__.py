"""Moving values from one process to another: how they become bytes, and how large ones go through shared memory.

Who sends what to whom, and when, is decided elsewhere.
"""
