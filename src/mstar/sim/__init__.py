"""The simulator: the real cores of all processes in one process, in virtual time, under faults drawn from a seed.

It replaces what is around the cores: sockets, clocks, threads, processes and devices. It replaces no core.
"""
