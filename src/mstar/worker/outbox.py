"""Outbox of the worker core: the messages and engine commands of one step, in order."""

from __future__ import annotations

from mstar.wire.messages import Message, Peer
from mstar.worker.commands import Action, Command, SendMessage


class Outbox:
    """Collects actions until the core returns them. The collaborators of the core write to it and never read it."""

    def __init__(self, conductor: Peer) -> None:
        self.conductor = conductor
        """Current conductor, in its latest incarnation."""
        self._actions: list[Action] = []

    def send(self, to: Peer, message: Message) -> None:
        """Queue a message to another process."""
        self._actions.append(SendMessage(to, message))

    def send_to_conductor(self, message: Message) -> None:
        """Queue a message to the current conductor."""
        self._actions.append(SendMessage(self.conductor, message))

    def command(self, command: Command) -> None:
        """Queue a command for the engine. The engine executes commands in this order."""
        self._actions.append(command)

    def take(self) -> list[Action]:
        """Remove and return all actions."""
        actions, self._actions = self._actions, []
        return actions
