"""One incarnation of a simulated process: what the actor loop does for a real one, with real links and without sockets.

It ignores dead incarnations, sends all messages of a turn to one peer as one frame, and retransmits unacknowledged
frames. Actors of one process, such as the launcher and a front end, share an `ActorGroup`. What the process does with
messages is in `processes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mstar.sim.environment import Environment
from mstar.wire import messages as m
from mstar.wire.incarnations import LiveIncarnations
from mstar.wire.link import Link

TICK_S = 0.1
"""Seconds between ticks. Real actor loops tick more often, except on an overloaded host."""


class ActorGroup:
    """The actors of one process: what one of them knows about dead peers holds for all."""

    def __init__(self) -> None:
        self.incarnations = LiveIncarnations()
        self.actors: list[SimProcess] = []

    def drop_links(self, name: str) -> None:
        """Drop the links of all actors to dead incarnations of a name."""
        for actor in self.actors:
            for by_peer in (actor.links, actor.outbox):
                for peer in [peer for peer in by_peer if peer.name == name and not self.incarnations.is_live(peer)]:
                    del by_peer[peer]


class SimProcess:
    """One incarnation of one process, or one actor of the process that has `group`."""

    def __init__(self, simulation: Environment, peer: m.Peer, group: ActorGroup | None = None) -> None:
        self.simulation = simulation
        self.peer = peer
        self.group = group or ActorGroup()
        self.group.actors.append(self)
        self.is_up = False
        """Whether it has started. Before that, frames to it are lost."""
        self.up_at = 0.0
        """Time at which it was up."""
        self.is_dead = False
        self.inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        """While it is paused, the callbacks to run when it resumes; otherwise None."""
        self.paused_at = 0.0
        """Time at which its last pause began."""
        self.resumed_at = 0.0
        """Time at which its last pause ended."""
        self.links: dict[m.Peer, Link] = {}
        self.outbox: dict[m.Peer, list[m.Message]] = {}

    # ---------------------------------------------------------------- implemented by each kind of process
    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Handle a message."""
        raise NotImplementedError

    def tick(self) -> None:
        """Let the core check its timeouts."""
        raise NotImplementedError

    # ---------------------------------------------------------------- actor loop
    def send(self, to: m.Peer, message: m.Message) -> None:
        """Add a message to the next frame to a peer, unless the peer is dead."""
        if to in self.outbox:
            self.outbox[to].append(message)
        elif self.group.incarnations.is_live(to):
            self.outbox[to] = [message]

    def on_frame(self, sender: m.Peer, number: int, ack: int, payload: list[m.Message]) -> None:
        """Handle a frame: deduplicate, reorder, and deliver its messages."""
        incarnations = self.group.incarnations
        if sender.incarnation != incarnations.oldest(sender.name):
            if not incarnations.is_live(sender):
                return
            if incarnations.add(sender):
                self.group.drop_links(sender.name)
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
        """Send one frame per peer with the messages of this turn."""
        if self.outbox:
            simulation, links = self.simulation, self.links
            outbox, self.outbox = self.outbox, {}
            for to, messages in outbox.items():
                link = links.get(to)
                if link is None:
                    link = links[to] = Link()
                is_reliable = not all(isinstance(message, m.LIVENESS_MESSAGES) for message in messages)
                frame = link.send(simulation.now, messages) if is_reliable else link.send_unreliable(messages)
                if frame is not None:
                    simulation.network.transmit(self, to, frame)

    def run_tick(self) -> None:
        """Tick the core, then retransmit frames that are due."""
        self.tick()
        self.flush()
        now = self.simulation.now
        for to, link in self.links.items():
            if now >= link.due:
                for frame in link.tick(now):
                    self.simulation.network.transmit(self, to, frame)

    def mark_peer_dead(self, peer: m.Peer) -> None:
        """Drop links to a dead incarnation."""
        if self.group.incarnations.remove(peer):
            self.group.drop_links(peer.name)

    def unacked_frames(self) -> int:
        """Count unacknowledged frames, apart from heartbeats in transit to live peers."""
        peers = self.simulation.peers
        unacked = ((peer, link.unacked) for peer, link in self.links.items())
        return sum(count if peers.get(peer.name, peer) != peer else max(0, count - 2) for peer, count in unacked)


def copy_message(message: Any) -> Any:
    """Copy what a receiver can modify, as a codec would."""
    kind = type(message)
    if kind is m.StateInput:
        return m.StateInput(
            message.rid, message.attempt, message.walk_index, message.input_index, m.Value(message.payload.content)
        )
    if kind is m.StateAhead:
        return m.StateAhead(message.model, m.Value(message.payload.content))
    if kind is m.DataBatch:
        return m.DataBatch(message.rid, message.attempt, message.walk_index, message.events)
    return message
