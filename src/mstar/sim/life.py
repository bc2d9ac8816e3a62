"""One life of a simulated process: what a node is to a real one, with the real links and without sockets.

It lets nobody speak whose life is over, sends all that is said to one peer in a turn as one frame, and sends again what
was not confirmed. What the process does with messages is in `processes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mstar.wire import messages as m
from mstar.wire.link import Link
from mstar.worker.commands import Cargo

if TYPE_CHECKING:
    from mstar.sim.world import World

TICK = 0.1
"""How often cores and links are told that time has passed. Real nodes do it more often; a busy machine may not."""


class Life:
    """One life of one process."""

    def __init__(self, world: World, peer: m.Peer) -> None:
        self.world = world
        self.peer = peer
        self.is_up = False
        """Whether it has started: before, nothing reaches it."""
        self.is_over = False
        self.inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        """While it is paused: what it will find when it goes on."""
        self.went_on = 0.0
        """When its last pause ended."""
        self.links: dict[m.Peer, Link] = {}
        self.outbox: dict[m.Peer, list[m.Message]] = {}
        self._oldest: dict[str, int] = {}

    # ---------------------------------------------------------------- what a process does
    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Take a message."""
        raise NotImplementedError

    def tick(self) -> None:
        """Time has passed."""
        raise NotImplementedError

    # ---------------------------------------------------------------- what its node does
    def say(self, to: m.Peer, message: m.Message) -> None:
        """Put a message into the next frame."""
        if to in self.outbox:
            self.outbox[to].append(message)
        elif to.incarnation >= self._oldest.get(to.name, -1):
            self.outbox[to] = [message]

    def arrive(self, sender: m.Peer, number: int, ack: int, payload: list[m.Message]) -> None:
        """A frame has come."""
        oldest = self._oldest.get(sender.name, -1)
        if sender.incarnation != oldest:
            if sender.incarnation < oldest:
                return
            self._bury(sender.name, sender.incarnation)
        link = self.links.get(sender)
        if link is None:
            link = self.links[sender] = Link()
        for messages in link.receive(self.world.now, number, ack, payload):
            for message in messages:
                if self.world.trace is not None:
                    self.world.trace.append(f"{self.world.now:8.4f}  {sender} -> {self.peer}: {message}")
                self.receive(sender, unpacked(message))
        self.flush()

    def flush(self) -> None:
        """Send what was said."""
        if self.outbox:
            world, links = self.world, self.links
            outbox, self.outbox = self.outbox, {}
            for to, messages in outbox.items():
                link = links.get(to)
                if link is None:
                    link = links[to] = Link()
                if (sent := link.send(world.now, messages)) is not None:
                    world.net.transmit(self, to, sent)

    def turn(self) -> None:
        """Some time has passed: what a core and links do then."""
        self.tick()
        self.flush()
        now = self.world.now
        for to, link in self.links.items():
            if now >= link.due:
                for sent in link.tick(now):
                    self.world.net.transmit(self, to, sent)

    def forget(self, peer: m.Peer) -> None:
        """That life is over."""
        self._bury(peer.name, peer.incarnation + 1)

    def _bury(self, name: str, oldest: int) -> None:
        if self._oldest.get(name, -1) < oldest:
            self._oldest[name] = oldest
            for held in (self.links, self.outbox):
                for peer in [peer for peer in held if peer.name == name and peer.incarnation < oldest]:
                    del held[peer]

    def unacked(self) -> int:
        """How many frames nobody has confirmed. There may always be a beat on its way to those that are there."""
        peers = self.world.peers
        held = ((peer, link.unacked) for peer, link in self.links.items())
        return sum(count if peers.get(peer.name, peer) != peer else max(0, count - 2) for peer, count in held)


def unpacked(message: Any) -> Any:
    """A message as it would come out of a codec: nothing in it that its receiver changes is its sender's."""
    kind = type(message)
    if kind is m.StateInput:
        return m.StateInput(message.rid, message.attempt, message.walk, message.input, m.Value(message.payload.it))
    if kind is m.Notes:
        notes = [_fresh(note) for note in message.notes]
        return m.Notes(message.rid, message.attempt, message.walk, message.seat, notes)
    return message


def _fresh(note: m.Note) -> m.Note:
    if isinstance(note, m.Passed) and isinstance(note.payload.it, Cargo):
        return m.Passed(note.value, note.path, m.Value(note.payload.it))
    return note
