"""Front-end actor of a process of its own: gets reports of the launcher and answers queries of other front ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from mstar.frontend.actor import FrontendActor
from mstar.launch.deployment import LAUNCHER
from mstar.process_tuning import process_usage
from mstar.wire import messages as m
from mstar.wire.stats import MetricFamily
from mstar.wire.transport.actor_loop import ActorLoop


class FrontendHost(Protocol):
    """The process of a front end. Its methods are called in the thread of the actor loop."""

    def on_report(self, content: bytes) -> None:
        """Handle a report of the launcher."""
        ...

    def export_metrics(self, names: tuple[str, ...], reply: Callable[[list[MetricFamily]], None]) -> None:
        """Call `reply` with the metrics of this front end with these names, in any thread."""
        ...


class SupervisedFrontend(FrontendActor):
    """A front end whose launcher is another process."""

    def __init__(
        self, actor_loop: ActorLoop, peer: m.Peer, conductors: Mapping[str, m.Peer], host: FrontendHost
    ) -> None:
        super().__init__(actor_loop, peer, conductors)
        self._host = host

    def register(self) -> None:
        """Report to the launcher that clients can connect, and to the conductors, which report dead peers."""
        for peer in (LAUNCHER, *{*self.conductors.values()}):
            self._send_soon(peer, m.Register())

    def report_accepting(self) -> None:
        """Report to the launcher that requests are accepted."""
        self._send_soon(LAUNCHER, m.Ready())

    def _send_soon(self, peer: m.Peer, message: m.Message) -> None:
        self._actor_loop.call_soon(lambda: self._actor_loop.send(self.peer, peer, message))

    def receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        """Handle a message from another process."""
        if isinstance(message, m.DeploymentReport):
            self._host.on_report(message.content)
        elif isinstance(message, m.StatsQuery):
            counts = self._core.stats() | self._actor_loop.stats() | process_usage()
            reply = m.StatsReply(message.correlation_id, counts)
            self._host.export_metrics(message.metrics, lambda metrics: self._reply(sender, reply, metrics))
        else:
            super().receive(now, sender, message)

    def _reply(self, peer: m.Peer, reply: m.StatsReply, metrics: list[MetricFamily]) -> None:
        reply.metrics = metrics
        self._send_soon(peer, reply)
