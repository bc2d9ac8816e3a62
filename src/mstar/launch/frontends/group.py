"""Front ends of a deployment that are processes of their own: their children, and what the launcher reports to them.

The supervisor starts and restarts them as it does all children. A front end gets a report on the deployment when it
starts and whenever the report changes: it has no other view of the workers. With one front end, which is in the process
of the launcher, the group is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from signal import SIGTERM

from mstar.config import FrontendSettings
from mstar.launch.child import Child
from mstar.wire.messages import DeploymentReport, Message, Peer, ProcessExited

NAME_PREFIX = "front-"
REPORT_INTERVAL_S = 1.0
"""Maximum seconds until a change that no event announces is reported, such as the loading progress of a worker."""


class FrontendGroup:
    """The front ends of one deployment."""

    def __init__(self, settings: FrontendSettings | None = None) -> None:
        self.settings = settings
        count = settings.server.frontends if settings else 0
        self.names = tuple(f"{NAME_PREFIX}{number}" for number in range(1, count + 1))
        self.make_report: Callable[[], bytes] = bytes
        """Returns the content of the report. Called on the actor loop."""
        self._children: dict[str, Child] = {}
        self._reported: dict[Peer, bytes] = {}
        """Last report to each running front end."""
        self._reported_at = -inf
        self._accepting: set[Peer] = set()
        self._send: Callable[[Peer, Message], None] = lambda _peer, _message: None
        self._call_soon: Callable[[Callable[[], None]], None] = lambda _: None

    def attach(
        self, send: Callable[[Peer, Message], None], call_soon: Callable[[Callable[[], None]], None]
    ) -> Mapping[str, Child]:
        """Create the children, by name, for the supervisor that has these ways to send a message and to call."""
        self._children = {name: Child(name) for name in self.names}
        self._send, self._call_soon = send, call_soon
        return self._children

    # ---------------------------------------------------------------- from any thread
    def peers(self) -> tuple[Peer, ...]:
        """Running front ends."""
        return tuple(child.peer for child in self._children.values() if child.process)

    def are_accepting(self) -> bool:
        """Whether every front end accepts requests."""
        return all(child.process and child.peer in self._accepting for child in self._children.values())

    def stop(self) -> None:
        """Have all front ends drain and exit, without a restart. A second call ends their requests with an error."""
        self._call_soon(self._stop)

    def report_soon(self) -> None:
        """Send the report now, if it has changed."""
        self._call_soon(self._report)

    # ---------------------------------------------------------------- on the actor loop
    def running(self) -> dict[str, int]:
        """Incarnation of each running front end, by name."""
        return {peer.name: peer.incarnation for peer in self.peers()}

    def on_changed(self) -> None:
        """A child is up or has exited: report it with the next tick."""
        self._reported_at = -inf

    def tick(self, now: float) -> None:
        """Send a report if one is due."""
        if self._children and now - self._reported_at >= REPORT_INTERVAL_S:
            self._reported_at = now
            self._report()

    def _report(self) -> None:
        """Send the report to every front end that does not have it."""
        running = self.peers()
        content = self.make_report() if running else b""
        for peer in running:
            if self._reported.get(peer) != content:
                self._reported[peer] = content
                self._send(peer, DeploymentReport(content))

    def on_accepting(self, peer: Peer) -> None:
        """A front end accepts requests."""
        self._accepting.add(peer)

    def on_exited(self, peer: Peer) -> None:
        """Forget an incarnation that has exited."""
        self._accepting.discard(peer)
        self._reported.pop(peer, None)

    def exit_reports(self) -> list[ProcessExited]:
        """Reports of the front ends that do not run, for a new conductor: it has not seen their exits."""
        exited = [child for child in self._children.values() if child.process is None and child.peer.incarnation >= 0]
        return [ProcessExited(child.peer, child.exit_reason) for child in exited]

    def _stop(self) -> None:
        for child in self._children.values():
            if child.stopping_since is not None and child.process:
                child.process.send_signal(SIGTERM)
            else:
                child.stop(inf)  # the supervisor kills none: a drain has a timeout of its own
