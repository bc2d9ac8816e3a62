"""The `mstar` command."""

from mstar.cli.main import main

__all__ = ["main"]
