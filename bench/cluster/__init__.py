"""Benches of several hosts. The hosts are network namespaces of one machine: see tests/cluster/hosts.py."""
