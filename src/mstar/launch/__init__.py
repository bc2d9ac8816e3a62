"""Process launchers and supervisor: start, watch and restart conductors and workers.

They run in this process, on this host, or on the hosts of a Ray cluster. Requests are not known here: the conductor
decides what a process exit means for them.
"""
