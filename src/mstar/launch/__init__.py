"""Starting processes: who starts, watches and restarts conductors and workers, on this machine or in this process.

It knows nothing of requests. What a death means for them is decided by the conductor, which is told.
"""
