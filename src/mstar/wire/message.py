"""What every message is made of: whose it is, and the values that it may bring. Which there are is in `messages`."""

from __future__ import annotations

from typing import Any

import msgspec


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """One life of one process: its name, and how often that name was started before."""

    name: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.name}.{self.incarnation}"


class Value:
    """A value of an author's program on its way."""

    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content

    def __repr__(self) -> str:
        return f"Value({self.content!r})"


class Message(msgspec.Struct, tag=True, array_like=True):
    """Anything one process says to another."""
