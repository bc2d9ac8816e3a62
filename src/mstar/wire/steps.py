"""What every core is told, and what every core may ask for: a message has come, time has passed, say something."""

from __future__ import annotations

from dataclasses import dataclass

from mstar.wire.messages import Message, Peer


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message has come."""

    sender: Peer
    message: Message


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Say something to another process."""

    to: Peer
    message: Message
