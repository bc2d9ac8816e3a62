"""Messages from the launcher to the conductors of a deployment. A conductor that does not run gets none."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mstar.launch.child import Child
from mstar.launch.deployment import Deployment
from mstar.wire.messages import Message, Peer


class ConductorLinks:
    """The current incarnations of the conductors."""

    def __init__(
        self, children: Mapping[str, Child], deployment: Deployment, send: Callable[[Peer, Message], None]
    ) -> None:
        self._children = children
        self._deployment = deployment
        self._send = send

    def is_current(self, peer: Peer) -> bool:
        """Whether a peer is the current incarnation of a conductor."""
        return peer.name in self._deployment.shards and self._children[peer.name].peer == peer

    def send(self, conductor: str, message: Message) -> None:
        """Send a message to a conductor, if it runs."""
        child = self._children[conductor]
        if child.process:
            self._send(child.peer, message)

    def send_to_conductor_of(self, name: str, message: Message) -> None:
        """Send a message to the conductor of a worker, if it runs."""
        self.send(self._deployment.conductor_of(name), message)

    def send_to_all(self, message: Message) -> None:
        """Send a message to every conductor that runs."""
        for name in self._deployment.shards:
            self.send(name, message)
