"""`mstar diff`: replay a request on two versions of a model, and name the first op call whose result differs."""

from mstar.cli.diff.command import add_diff

__all__ = ["add_diff"]
