"""Value transfer between processes: serialization, shared memory on one host, RDMA or TCP between hosts.

Which value goes where, and when, is decided by the conductor and the workers.
"""
