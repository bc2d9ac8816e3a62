"""A worker on a node: its core, driven by messages, by time and by the reports of its engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from mstar.wire import messages as m
from mstar.wire.node import Node
from mstar.wire.recent import answer
from mstar.worker.commands import Command, Event, Received, Send, Tick
from mstar.worker.core import WorkerCore
from mstar.worker.engine_room import EngineRoom

TURN = 0.002
"""For so many seconds a worker may do small things before it looks for messages."""


class WorkerActor:
    """Hands events to the core, and does what it says."""

    def __init__(self, node: Node, core: WorkerCore, stock: Callable[[], dict[str, int]]) -> None:
        self.peer = core.me
        self._node = node
        self._core = core
        self._stock = stock
        self._room: EngineRoom | None = None

    def drive(self, room: EngineRoom, launcher: m.Peer) -> None:
        """Use this engine, and tell the launcher and the conductor that this worker is there."""
        self._room = room
        room.start()
        hello = m.Hello(edition=self._core.edition)
        for peer in (self._core.conductor, launcher):
            self._node.call(lambda peer=peer: self._node.send(self.peer, peer, hello))

    def receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        """A message has come."""
        if isinstance(message, m.TakeStock):
            room = {} if self._room is None else self._room.stock()
            stock = self._core.stock() | room | self._node.stock() | self._stock()
            self._node.send(
                self.peer, sender, m.Stock(message.ticket, stock, self._core.tally.ops(), self._core.gauge.kinds())
            )
            return
        if isinstance(message, m.TakeTimeline):
            self._node.send(self.peer, sender, answer(message, self._core.tally))
            return
        if isinstance(message, m.TakeNews):
            news = self._core.tally.watch.news(now, sender, message.ticket, self._core)
            news.counts |= {} if self._room is None else self._room.stock()
            self._node.send(self.peer, sender, news)
            return
        if isinstance(message, m.Forget):
            self._node.forget(message.peer)
        self._step(now, Received(sender, message))

    def tick(self, now: float) -> None:
        """Time has passed."""
        self._step(now, Tick())

    def report(self, event: Event) -> None:
        """The engine has something to say, in its own thread."""
        self._node.call(lambda: self._step(time.monotonic(), event))

    def _step(self, now: float, event: Event) -> None:
        """Take an event, and those that follow from it at once, for a while: others want to be heard too."""
        until = now + TURN
        events: deque[Event] = deque((event,))
        while events:
            actions = self._core.step(now, events.popleft())
            commands: list[Command] = [action for action in actions if not isinstance(action, Send)]
            if commands and self._room is not None:  # before anything is sent: the engine is what must not wait
                events.extend(self._room.submit(commands, is_patient=now < until))
                now = time.monotonic()
            for action in actions:
                if isinstance(action, Send):
                    self._node.send(self.peer, action.to, action.message)
