"""A conductor on a node: its core, driven by messages and by time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mstar.conductor.core import ConductorCore, Event, MessageReceived, Tick
from mstar.conductor.status import build_activity
from mstar.wire import messages as m
from mstar.wire.span_buffer import reply_to_query
from mstar.wire.transport.actor_loop import ActorLoop


class ConductorActor:
    """Hands events to the core, and sends what it says."""

    def __init__(self, node: ActorLoop, core: ConductorCore, process_stats: Callable[[], dict[str, int]]) -> None:
        self.peer = core.peer
        self._actor_loop = node
        self._core = core
        self._process_stats = process_stats

    def announce(self, peers: Iterable[m.Peer]) -> None:
        """Tell everyone that this is the conductor now."""
        for peer in peers:
            self._actor_loop.send(self.peer, peer, m.Register())

    def receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        """A message has come."""
        if isinstance(message, m.StatsQuery):
            stock = self._core.stats() | self._actor_loop.stats() | self._process_stats()
            self._actor_loop.send(self.peer, sender, m.StatsReply(message.correlation_id, stock))
        elif isinstance(message, m.SpansQuery):
            self._actor_loop.send(self.peer, sender, reply_to_query(message, self._core.request_spans))
        elif isinstance(message, m.ActivityQuery):
            self._actor_loop.send(self.peer, sender, build_activity(now, message.correlation_id, self._core))
        else:
            self._step(now, MessageReceived(sender, message))

    def tick(self, now: float) -> None:
        """Time has passed."""
        self._step(now, Tick())

    def _step(self, now: float, event: Event) -> None:
        for action in self._core.step(now, event):
            if isinstance(action.message, m.PeerDead):
                self._actor_loop.forget(action.message.peer)
            self._actor_loop.send(self.peer, action.to, action.message)
