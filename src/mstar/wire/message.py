"""Base types of the wire protocol: peers, values, messages, and the events that all sans-IO cores share.

The messages themselves are in `messages` and `queries`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """One incarnation of a process: its name, and the number of earlier starts of that name."""

    name: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.name}.{self.incarnation}"


class Value:
    """A value of a model in transit: a prompt, a tensor, a result."""

    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content

    def __repr__(self) -> str:
        return f"Value({self.content!r})"


class Message(msgspec.Struct, tag=True, array_like=True):
    """Base class of all messages between processes."""


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """Event for a core: a message arrived."""

    sender: Peer
    message: Message


@dataclass(frozen=True, slots=True)
class Tick:
    """Event for a core: time has passed. The time itself is an argument of the core's `step`."""


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Action of a core: send a message to another process."""

    to: Peer
    message: Message
