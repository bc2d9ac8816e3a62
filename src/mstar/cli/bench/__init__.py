"""`mstar bench serve`: load test of a running server, mstar or any OpenAI-compatible one. Starts no server."""

from mstar.cli.bench.command import add_bench

__all__ = ["add_bench"]
