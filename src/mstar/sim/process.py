"""One incarnation of a simulated process: what the actor loop does for a real one, with real links and without sockets.

It ignores dead incarnations, sends all messages of a turn to one peer as one frame, and retransmits unacknowledged
frames. What the process does with messages is in `processes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mstar.sim.environment import Environment
from mstar.wire import messages as m
from mstar.wire.link import Link

TICK_S = 0.1
"""Seconds between ticks. Real actor loops tick more often, except on an overloaded host."""


class SimProcess:
    """One incarnation of one process."""

    def __init__(self, simulation: Environment, peer: m.Peer) -> None:
        self.simulation = simulation
        self.peer = peer
        self.is_up = False
        """Whether it has started. Before that, frames to it are lost."""
        self.is_dead = False
        self.inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        """While it is paused, the callbacks to run when it resumes; otherwise None."""
        self.resumed_at = 0.0
        """Time at which its last pause ended."""
        self.links: dict[m.Peer, Link] = {}
        self.outbox: dict[m.Peer, list[m.Message]] = {}
        self._oldest_incarnations: dict[str, int] = {}

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
        elif to.incarnation >= self._oldest_incarnations.get(to.name, -1):
            self.outbox[to] = [message]

    def on_frame(self, sender: m.Peer, number: int, ack: int, payload: list[m.Message]) -> None:
        """Handle a frame: deduplicate, reorder, and deliver its messages."""
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
        """Send one frame per peer with the messages of this turn."""
        if self.outbox:
            simulation, links = self.simulation, self.links
            outbox, self.outbox = self.outbox, {}
            for to, messages in outbox.items():
                link = links.get(to)
                if link is None:
                    link = links[to] = Link()
                if (frame := link.send(simulation.now, messages)) is not None:
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
        self._drop_links(peer.name, peer.incarnation + 1)

    def _drop_links(self, name: str, oldest: int) -> None:
        if self._oldest_incarnations.get(name, -1) < oldest:
            self._oldest_incarnations[name] = oldest
            for by_peer in (self.links, self.outbox):
                for peer in [peer for peer in by_peer if peer.name == name and peer.incarnation < oldest]:
                    del by_peer[peer]

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
    if kind is m.DataBatch:
        return m.DataBatch(message.rid, message.attempt, message.walk_index, message.events)
    return message
