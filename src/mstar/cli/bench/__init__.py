"""`mstar bench serve`: a load on a running server, ours or another's, and what its clients saw. It starts no server."""

from mstar.cli.bench.command import add_bench

__all__ = ["add_bench"]
