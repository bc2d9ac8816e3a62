"""Base types of the wire protocol: peers, values, messages, and the events that all sans-IO cores share.

The messages themselves are in `messages` and `queries`.
"""

from __future__ import annotations

from typing import Any

import msgspec

ALTERNATE_SUFFIX = "+"
"""Suffix of the second process name of a worker. No name in a placement contains it."""


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """One incarnation of a process: its name, and the number of earlier starts of that name."""

    name: str
    incarnation: int

    @property
    def worker(self) -> str:
        """Name of its worker in the placement; see `process_names`."""
        return worker_of(self.name)

    def __str__(self) -> str:
        return f"{self.name}.{self.incarnation}"


def process_names(worker: str) -> tuple[str, str]:
    """Return the names of the two processes that a worker of the placement can have, of which usually one runs.

    In a rolling update the successor runs beside the old process. A later incarnation of one name proves that the
    earlier one is dead, so the two alternate between two names.
    """
    return worker, worker + ALTERNATE_SUFFIX


def worker_of(process: str) -> str:
    """Return the worker of a process name. A process that is not a worker has one name."""
    return process.removesuffix(ALTERNATE_SUFFIX)


class Value:
    """A value of a model in transit: a prompt, a tensor, a result."""

    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content

    def __repr__(self) -> str:
        return f"Value({self.content!r})"


class Message(msgspec.Struct, tag=True, array_like=True):
    """Base class of all messages between processes."""


class MessageReceived(msgspec.Struct, frozen=True):
    """Event for a core: a message arrived."""

    sender: Peer
    message: Message


class Tick(msgspec.Struct, frozen=True):
    """Event for a core: time has passed. The time itself is an argument of the core's `step`."""


class SendMessage(msgspec.Struct, frozen=True):
    """Action of a core: send a message to another process."""

    to: Peer
    message: Message
