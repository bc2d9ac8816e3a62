"""`mstar compress`: a checkpoint with an encoder of lower rank, checked by its word errors."""

from mstar.cli.compress.command import add_compress

__all__ = ["add_compress"]
