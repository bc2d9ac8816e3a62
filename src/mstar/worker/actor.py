"""Actor of a worker: feeds its core with messages, ticks and engine reports, and performs the core's actions."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from mstar.wire import messages as m
from mstar.wire.span_buffer import reply_to_query
from mstar.wire.transport.actor_loop import ActorLoop, TickInterval
from mstar.worker.batch_watchdog import BatchWatchdog
from mstar.worker.commands import Action, BatchFinished, Command, Event, MessageReceived, SendMessage, Tick
from mstar.worker.core import HEARTBEAT_INTERVAL_S, WorkerCore
from mstar.worker.engine_thread import EngineThread

INLINE_BUDGET_S = 0.002
"""Seconds for which the actor runs short batches inline before it reads messages again."""

MAX_SENT_BY_ENGINE = 4
"""Maximum messages that the engine's thread sends before it runs the next batch. It sends them in the time that a
switch to the thread of the loop would take; with more of them, the engine would idle."""

_ACTOR_MESSAGES = (m.StatsQuery, m.SpansQuery, m.ActivityQuery, m.PeerDead)
"""Messages that the actor answers, or handles before the core does."""


class WorkerActor:
    """Connects a core to an actor loop and an engine thread. All methods but `report` need the turn of the loop."""

    tick_interval = TickInterval(HEARTBEAT_INTERVAL_S, 1.1 * HEARTBEAT_INTERVAL_S)

    def __init__(self, actor_loop: ActorLoop, core: WorkerCore, process_stats: Callable[[], dict[str, int]]) -> None:
        self.peer = core.peer
        self._actor_loop = actor_loop
        self._core = core
        self._process_stats = process_stats
        self._engine_thread: EngineThread | None = None
        self._watchdog = BatchWatchdog()

    def attach_engine(self, engine_thread: EngineThread, launcher: m.Peer) -> None:
        """Start the engine and register this worker with the launcher and the conductor."""
        self._engine_thread = engine_thread
        engine_thread.start()
        registration = self._core.registration()
        for peer in (launcher, self._core.conductor):  # the launcher shows the devices once the conductor is ready
            self._actor_loop.call_soon(lambda peer=peer: self._actor_loop.send(self.peer, peer, registration))

    def receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        """Answer a query, or pass the message to the core."""
        if not isinstance(message, _ACTOR_MESSAGES):
            self._step(now, MessageReceived(sender, message))
        elif isinstance(message, m.StatsQuery):
            counts = self._core.stats() | self._engine_stats() | self._actor_loop.stats() | self._process_stats()
            deadlines = self._core.load_estimator.deadline_stats()
            ops = self._core.op_stats.ops(self._core.running_batch())
            reply = m.StatsReply(message.correlation_id, counts, ops, deadlines)
            self._actor_loop.send(self.peer, sender, reply)
        elif isinstance(message, m.SpansQuery):
            self._actor_loop.send(self.peer, sender, reply_to_query(message, self._core.op_stats))
        elif isinstance(message, m.ActivityQuery):
            live_stats = self._core.op_stats.live_stats
            activity = live_stats.build_activity(now, sender, message.correlation_id, self._core.snapshot())
            activity.counts |= self._engine_stats()
            self._actor_loop.send(self.peer, sender, activity)
        else:
            self._actor_loop.forget(message.peer)
            self._step(now, MessageReceived(sender, message))

    def tick(self, now: float) -> None:
        """Advance the core's timers."""
        self._step(now, Tick())
        self._watchdog.check(self._core.running_batch())

    def report(self, event: Event) -> None:
        """Accept a report of the engine. Called in the engine's thread, which processes it while the loop waits.

        Exported states are large: the loop sends them while the engine runs the next batch.
        """
        is_processed = isinstance(event, BatchFinished) and self._actor_loop.try_run(
            lambda: self._step(time.monotonic(), event, is_engine=True)
        )
        if not is_processed:
            self._actor_loop.call_soon(lambda: self._step(time.monotonic(), event))

    def _engine_stats(self) -> dict[str, int]:
        return {} if self._engine_thread is None else self._engine_thread.stats()

    def _step(self, now: float, event: Event, *, is_engine: bool = False) -> None:
        """Process an event and the inline reports that follow from it, within the inline budget."""
        until = now + INLINE_BUDGET_S
        events: deque[Event] = deque((event,))
        while events:
            actions = self._core.step(now, events.popleft())
            commands: list[Command] = [action for action in actions if not isinstance(action, SendMessage)]
            # Commands go out before messages: the engine must not idle while messages are encoded.
            if commands and self._engine_thread is not None:
                events.extend(self._engine_thread.submit(commands, may_run_inline=now < until))
                now = time.monotonic()
            if is_engine and commands and len(actions) - len(commands) > MAX_SENT_BY_ENGINE:
                self._actor_loop.call_soon(lambda actions=actions: self._send(actions))
            else:
                self._send(actions)
        if (wait_s := self._core.scheduler.fill_wait_s) is not None:
            self._actor_loop.tick_within(self.peer, wait_s)

    def _send(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, SendMessage):
                self._actor_loop.send(self.peer, action.to, action.message)
