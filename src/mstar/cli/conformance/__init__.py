"""`mstar conformance`: test a running server with the official OpenAI and openpi clients. Starts no server."""

from mstar.cli.conformance.command import add_conformance

__all__ = ["add_conformance"]
