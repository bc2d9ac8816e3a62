"""Deterministic simulation testing: the real cores of all processes in virtual time, under faults drawn from a seed.

The simulator replaces what is around the cores: sockets, clocks, threads, processes and devices. It replaces no core.
"""
