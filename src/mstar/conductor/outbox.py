"""Messages to send after the current step, in order."""

from __future__ import annotations

from mstar.wire.message import SendMessage
from mstar.wire.messages import Message, Peer


class Outbox:
    """Collects the messages of one step. The parts of a conductor write to it; the core drains it."""

    def __init__(self, launcher: Peer) -> None:
        self._launcher = launcher
        self._messages: list[SendMessage] = []

    def send(self, to: Peer, message: Message) -> None:
        """Queue a message to any peer."""
        self._messages.append(SendMessage(to, message))

    def send_launcher(self, message: Message) -> None:
        """Queue a message to the launcher."""
        self.send(self._launcher, message)

    def drain(self) -> list[SendMessage]:
        """Return all queued messages and clear the outbox."""
        messages, self._messages = self._messages, []
        return messages
