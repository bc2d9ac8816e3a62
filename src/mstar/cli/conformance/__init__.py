"""`mstar conformance`: a running server, tried with the client libraries that people use. It starts no server."""

from mstar.cli.conformance.command import add_conformance

__all__ = ["add_conformance"]
