"""The `mstar` command."""

from mstar.cli.commands import main

__all__ = ["main"]
