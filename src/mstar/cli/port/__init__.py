"""`mstar port`: start a model from the class of transformers that is its reference."""

from mstar.cli.port.port import add_port

__all__ = ["add_port"]
