"""`mstar prove`: one gate for a model of your own, from its walks to a crash of each worker."""

from mstar.cli.prove.command import add_prove

__all__ = ["add_prove"]
