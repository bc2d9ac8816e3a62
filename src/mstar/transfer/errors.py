"""What can go wrong when a value moves. Neither is ever answered with a value that was not sent."""

from __future__ import annotations

from mstar.errors import MstarError, WouldBlock

__all__ = ["NotSerializable", "ReadFailed", "WouldBlock"]  # wire, which knows nothing of transfer, catches NotHere


class NotSerializable(MstarError):
    """A value cannot leave its process."""


class ReadFailed(MstarError):
    """What was sent cannot be read."""
