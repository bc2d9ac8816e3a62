"""One life of a simulated process: what a node is to a real one, with the real links and without sockets.

It lets nobody speak whose life is over, sends all that is said to one peer in a turn as one frame, and sends again what
was not confirmed. What the process does with messages is in `processes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mstar.wire import messages as m
from mstar.wire.link import Link

if TYPE_CHECKING:
    from mstar.sim.simulation import Simulation

TICK_S = 0.1
"""How often cores and links are told that time has passed. Real nodes do it more often; a busy machine may not."""


class SimProcess:
    """One life of one process."""

    def __init__(self, simulation: Simulation, peer: m.Peer) -> None:
        self.simulation = simulation
        self.peer = peer
        self.is_up = False
        """Whether it has started: before, nothing reaches it."""
        self.is_dead = False
        self.inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        """While it is paused: what it will find when it goes on."""
        self.resumed_at = 0.0
        """When its last pause ended."""
        self.links: dict[m.Peer, Link] = {}
        self.outbox: dict[m.Peer, list[m.Message]] = {}
        self._oldest_incarnations: dict[str, int] = {}

    # ---------------------------------------------------------------- what a process does
    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Take a message."""
        raise NotImplementedError

    def tick(self) -> None:
        """Time has passed."""
        raise NotImplementedError

    # ---------------------------------------------------------------- what its node does
    def send(self, to: m.Peer, message: m.Message) -> None:
        """Put a message into the next frame."""
        if to in self.outbox:
            self.outbox[to].append(message)
        elif to.incarnation >= self._oldest_incarnations.get(to.name, -1):
            self.outbox[to] = [message]

    def on_frame(self, sender: m.Peer, number: int, ack: int, payload: list[m.Message]) -> None:
        """A frame has come."""
        oldest = self._oldest_incarnations.get(sender.name, -1)
        if sender.incarnation != oldest:
            if sender.incarnation < oldest:
                return
            self._drop_links(sender.name, sender.incarnation)
        link = self.links.get(sender)
        if link is None:
            link = self.links[sender] = Link()
        for messages in link.receive(self.simulation.now, number, ack, payload):
            for message in messages:
                if self.simulation.trace is not None:
                    self.simulation.trace.append(f"{self.simulation.now:8.4f}  {sender} -> {self.peer}: {message}")
                self.receive(sender, copy_message(message))
        self.flush()

    def flush(self) -> None:
        """Send what was said."""
        if self.outbox:
            world, links = self.simulation, self.links
            outbox, self.outbox = self.outbox, {}
            for to, messages in outbox.items():
                link = links.get(to)
                if link is None:
                    link = links[to] = Link()
                if (sent := link.send(world.now, messages)) is not None:
                    world.network.transmit(self, to, sent)

    def run_tick(self) -> None:
        """Some time has passed: what a core and links do then."""
        self.tick()
        self.flush()
        now = self.simulation.now
        for to, link in self.links.items():
            if now >= link.due:
                for sent in link.tick(now):
                    self.simulation.network.transmit(self, to, sent)

    def mark_peer_dead(self, peer: m.Peer) -> None:
        """That life is over."""
        self._drop_links(peer.name, peer.incarnation + 1)

    def _drop_links(self, name: str, oldest: int) -> None:
        if self._oldest_incarnations.get(name, -1) < oldest:
            self._oldest_incarnations[name] = oldest
            for held in (self.links, self.outbox):
                for peer in [peer for peer in held if peer.name == name and peer.incarnation < oldest]:
                    del held[peer]

    def unacked_frames(self) -> int:
        """How many frames nobody has confirmed. There may always be a beat on its way to those that are there."""
        peers = self.simulation.peers
        held = ((peer, link.unacked) for peer, link in self.links.items())
        return sum(count if peers.get(peer.name, peer) != peer else max(0, count - 2) for peer, count in held)


def copy_message(message: Any) -> Any:
    """A message as it would come out of a codec: nothing in it that its receiver changes is its sender's."""
    kind = type(message)
    if kind is m.StateInput:
        return m.StateInput(
            message.rid, message.attempt, message.walk_index, message.input_index, m.Value(message.payload.content)
        )
    if kind is m.DataBatch:
        return m.DataBatch(message.rid, message.attempt, message.walk_index, message.events)
    return message
