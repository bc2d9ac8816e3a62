"""Actor that drives a conductor core: feeds it messages and ticks of an actor loop, and sends what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mstar.conductor.core import ConductorCore, Event
from mstar.conductor.liveness.watch import HEARTBEAT_INTERVAL_S
from mstar.conductor.status import build_activity
from mstar.wire import messages as m
from mstar.wire.message import MessageReceived, Tick
from mstar.wire.span_buffer import reply_to_query
from mstar.wire.transport.actor_loop import SLOW_TICKS, ActorLoop

_QUERIES = (m.StatsQuery, m.SpansQuery, m.ActivityQuery)
"""Messages that the actor answers. The core gets everything else."""


class ConductorActor:
    """A conductor on an actor loop."""

    tick_interval = SLOW_TICKS

    def __init__(self, actor_loop: ActorLoop, core: ConductorCore, process_stats: Callable[[], dict[str, int]]) -> None:
        self.peer = core.peer
        self._actor_loop = actor_loop
        self._core = core
        self._process_stats = process_stats
        self._last_heartbeat_at = float("-inf")

    def announce(self, peers: Iterable[m.Peer]) -> None:
        """Register with peers, so that they switch from an earlier incarnation to this one."""
        for peer in peers:
            self._actor_loop.send(self.peer, peer, m.Register())

    def receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        """Handle a message."""
        if not isinstance(message, _QUERIES):
            self._step(now, MessageReceived(sender, message))
            return
        core = self._core
        if isinstance(message, m.StatsQuery):
            stats = core.stats() | self._actor_loop.stats() | self._process_stats()
            reply = m.StatsReply(message.correlation_id, stats)
        elif isinstance(message, m.SpansQuery):
            reply = reply_to_query(message, core.request_spans)
        else:
            active_now, requests = core.clock.advance(now), core.lifecycle.requests
            queue_length = core.admission.queue_length
            reply = build_activity(
                active_now, message.correlation_id, requests, core.membership, core.capacity, queue_length
            )
        self._actor_loop.send(self.peer, sender, reply)

    def tick(self, now: float) -> None:
        """Let the core check its timeouts, and send the launcher a heartbeat."""
        self._step(now, Tick())
        if now - self._last_heartbeat_at >= HEARTBEAT_INTERVAL_S:
            self._last_heartbeat_at = now
            self._actor_loop.send(self.peer, self._core.launcher, m.Heartbeat())

    def _step(self, now: float, event: Event) -> None:
        for action in self._core.step(now, event):
            if isinstance(action.message, m.PeerDead):
                self._actor_loop.forget(action.message.peer)
            self._actor_loop.send(self.peer, action.to, action.message)
