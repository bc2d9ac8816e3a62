"""A worker on a node: its core, driven by messages, by time and by the reports of its engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from mstar.wire import messages as m
from mstar.wire.span_buffer import reply_to_query
from mstar.wire.transport.actor_loop import ActorLoop
from mstar.worker.commands import Command, Event, MessageReceived, SendMessage, Tick
from mstar.worker.core import WorkerCore
from mstar.worker.engine_thread import EngineThread

INLINE_BUDGET_S = 0.002
"""For so many seconds a worker may do small things before it looks for messages."""


class WorkerActor:
    """Hands events to the core, and does what it says."""

    def __init__(self, node: ActorLoop, core: WorkerCore, process_stats: Callable[[], dict[str, int]]) -> None:
        self.peer = core.peer
        self._actor_loop = node
        self._core = core
        self._process_stats = process_stats
        self._engine_thread: EngineThread | None = None

    def attach_engine(self, engine_thread: EngineThread, launcher: m.Peer) -> None:
        """Use this engine, and tell the launcher and the conductor that this worker is there."""
        self._engine_thread = engine_thread
        engine_thread.start()
        hello = m.Register(weights_version=self._core.weights_version)
        for peer in (self._core.conductor, launcher):
            self._actor_loop.call_soon(lambda peer=peer: self._actor_loop.send(self.peer, peer, hello))

    def receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        """A message has come."""
        if isinstance(message, m.StatsQuery):
            room = {} if self._engine_thread is None else self._engine_thread.stats()
            stock = self._core.stats() | room | self._actor_loop.stats() | self._process_stats()
            self._actor_loop.send(
                self.peer,
                sender,
                m.StatsReply(
                    message.correlation_id, stock, self._core.op_stats.ops(), self._core.load_estimator.deadline_stats()
                ),
            )
            return
        if isinstance(message, m.SpansQuery):
            self._actor_loop.send(self.peer, sender, reply_to_query(message, self._core.op_stats))
            return
        if isinstance(message, m.ActivityQuery):
            news = self._core.op_stats.live_stats.build_activity(now, sender, message.correlation_id, self._core)
            news.counts |= {} if self._engine_thread is None else self._engine_thread.stats()
            self._actor_loop.send(self.peer, sender, news)
            return
        if isinstance(message, m.PeerDead):
            self._actor_loop.forget(message.peer)
        self._step(now, MessageReceived(sender, message))

    def tick(self, now: float) -> None:
        """Time has passed."""
        self._step(now, Tick())

    def report(self, event: Event) -> None:
        """The engine has something to say, in its own thread."""
        self._actor_loop.call_soon(lambda: self._step(time.monotonic(), event))

    def _step(self, now: float, event: Event) -> None:
        """Take an event, and those that follow from it at once, for a while: others want to be heard too."""
        until = now + INLINE_BUDGET_S
        events: deque[Event] = deque((event,))
        while events:
            actions = self._core.step(now, events.popleft())
            commands: list[Command] = [action for action in actions if not isinstance(action, SendMessage)]
            if (
                commands and self._engine_thread is not None
            ):  # before anything is sent: the engine is what must not wait
                events.extend(self._engine_thread.submit(commands, may_run_inline=now < until))
                now = time.monotonic()
            for action in actions:
                if isinstance(action, SendMessage):
                    self._actor_loop.send(self.peer, action.to, action.message)
