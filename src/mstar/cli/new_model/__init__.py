"""`mstar new`: start a model of your own from files that run, are tested and can be served."""

from mstar.cli.new_model.new_model import add_new

__all__ = ["add_new"]
