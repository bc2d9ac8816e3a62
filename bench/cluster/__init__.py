"""What several hosts are good for, and what they cost. The hosts are network namespaces: see tests/cluster/hosts.py."""
