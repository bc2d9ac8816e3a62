"""A conductor on a node: its core, driven by messages and by time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mstar.conductor.core import ConductorCore, Event, Received, Tick
from mstar.conductor.overview import news
from mstar.wire import messages as m
from mstar.wire.node import Node
from mstar.wire.recent import answer


class ConductorActor:
    """Hands events to the core, and sends what it says."""

    def __init__(self, node: Node, core: ConductorCore, stock: Callable[[], dict[str, int]]) -> None:
        self.peer = core.me
        self._node = node
        self._core = core
        self._stock = stock

    def greet(self, peers: Iterable[m.Peer]) -> None:
        """Tell everyone that this is the conductor now."""
        for peer in peers:
            self._node.send(self.peer, peer, m.Hello())

    def receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        """A message has come."""
        if isinstance(message, m.TakeStock):
            stock = self._core.stock() | self._node.stock() | self._stock()
            self._node.send(self.peer, sender, m.Stock(message.ticket, stock))
        elif isinstance(message, m.TakeTimeline):
            self._node.send(self.peer, sender, answer(message, self._core.timeline))
        elif isinstance(message, m.TakeNews):
            self._node.send(self.peer, sender, news(now, message.ticket, self._core))
        else:
            self._step(now, Received(sender, message))

    def tick(self, now: float) -> None:
        """Time has passed."""
        self._step(now, Tick())

    def _step(self, now: float, event: Event) -> None:
        for action in self._core.step(now, event):
            if isinstance(action.message, m.Forget):
                self._node.forget(action.message.peer)
            self._node.send(self.peer, action.to, action.message)
