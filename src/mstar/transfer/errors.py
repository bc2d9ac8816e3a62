"""What can go wrong when a value moves. Neither is ever answered with a value that was not sent."""

from __future__ import annotations

from mstar.errors import MstarError, NotHere

__all__ = ["NotHere", "ReadFailed", "Unpackable"]  # wire, which knows nothing of transfer, catches NotHere


class Unpackable(MstarError):
    """A value cannot leave its process."""


class ReadFailed(MstarError):
    """What was sent cannot be read."""
