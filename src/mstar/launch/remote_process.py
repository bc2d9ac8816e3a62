"""Handle on a process of another host, driven through its Ray actor (`ray_actor.ProcessActor`).

All calls are asynchronous and never block on a host. A call without an answer is retried; a process counts as exited
only if its actor or Ray reports it. A process is *unreachable* if it was killed and cannot be confirmed dead, or if Ray
reports its actor as unavailable for UNAVAILABLE_TIMEOUT_S: a new incarnation can replace it, and the actor kills the
old one first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from signal import SIGKILL, Signals
from threading import Event
from typing import Any

import msgspec
from ray.exceptions import ActorUnavailableError, RayError

from mstar.launch.os_process.output import OutputForwarder
from mstar.launch.process_handle import ChildConfig
from mstar.launch.ray_actor import ExitReport, ProcessStatus
from mstar.wire.messages import ExitCause, Suspect

RETRY_INTERVAL_S = 0.3
"""Seconds before a failed call is retried (fixed interval)."""
WATCH_TIMEOUT_S = 20.0
"""Timeout of one wait for the exit, in seconds; then it is repeated, so that no call is left open forever."""
UNREACHABLE_AFTER_S = 1.0
"""Seconds after SIGKILL after which a process without an exit report is unreachable."""

UNAVAILABLE_TIMEOUT_S = 3.0
"""Seconds for which Ray reports its actor as unavailable after which a process is unreachable: its host has died."""

CallSoon = Callable[[Callable[[], None]], None]
"""Schedules a function on the actor loop of the launcher."""


class RemoteProcess:
    """One incarnation of a child. All but `send_signal` and the getters runs on the actor loop of the launcher."""

    def __init__(
        self,
        actor: Any,
        call_soon: CallSoon,
        on_exit: Callable[[RemoteProcess], None],
        pending_reason: Callable[[], str],
    ) -> None:
        self.exited = Event()
        self.pid = 0
        self.host = ""
        self.is_actor_dead = False
        """Ray will not restart its actor."""
        self._actor = actor
        self._call_soon = call_soon
        self._on_exit = on_exit
        self._find_pending_reason = pending_reason
        self._encoded_config = b""
        self._incarnation = -1
        self._retry: tuple[float, Callable[[], None]] | None = None
        self._is_polling = False
        self._unavailable_since: float | None = None
        self._status = ProcessStatus()
        self._forwarder = OutputForwarder("child", 0)
        self._killed_at: float | None = None
        self._exit_report = ExitReport("")

    # ---------------------------------------------------------------- ProcessHandle
    def configure(self, config: ChildConfig) -> None:
        """Start it through its actor, as soon as Ray has placed that."""
        self._encoded_config = msgspec.msgpack.encode(config)
        self._forwarder.process = config.name
        self._incarnation = config.incarnation
        self._start()

    def send_signal(self, signal_number: Signals) -> None:
        """Send a signal, if its host is reachable."""
        if signal_number == SIGKILL and self._killed_at is None:
            self._killed_at = time.monotonic()
        self._actor.send_signal.remote(self._incarnation, int(signal_number))

    def cpu_seconds(self) -> float:
        """CPU time at the last poll, in seconds. Starts the next poll."""
        if self.pid and not self._is_polling:
            self._is_polling = True
            self._await_reply(self._actor.status.remote(), self._on_status)
        return self._status.cpu_s

    def loading_progress(self) -> tuple[int, str] | None:
        """Number of loaded components, and the one being loaded; None if it is not loading."""
        return self._status.loading

    def pending_reason(self) -> str:
        """Why it has not started yet; empty if it has."""
        if self.pid:
            return ""
        return self._find_pending_reason() or ("its host does not answer" if self._unavailable_since else "")

    def is_unreachable(self) -> bool:
        """Whether it has started, its host does not answer, and its exit cannot be confirmed."""
        now, since = time.monotonic(), self._unavailable_since
        if self._killed_at is not None:
            return since is not None or now - self._killed_at > UNREACHABLE_AFTER_S
        return bool(self.pid) and since is not None and now - since > UNAVAILABLE_TIMEOUT_S

    def exit_reason(self) -> str:
        """Exit signal or status."""
        return self._exit_report.reason

    def exit_cause(self) -> ExitCause:
        """The cause that its actor saw; a lost host or actor is external."""
        return self._exit_report.cause

    def stderr_tail(self) -> str:
        """Tail of its output."""
        return self._exit_report.stderr_tail

    def crash_suspects(self) -> list[Suspect]:
        """Requests of its last batch, if its actor could report them."""
        return self._exit_report.suspects

    def tick(self, now: float) -> None:
        """Retry the failed call, if it is due."""
        if self._retry and self._retry[0] <= now:
            (_, call), self._retry = self._retry, None
            call()

    # ---------------------------------------------------------------- calls to its actor
    def _await_reply(self, reply: Any, then: Callable[[Any, BaseException | None], None]) -> None:
        def on_done(future: Any) -> None:
            error = future.exception()
            result = None if error else future.result()
            self._call_soon(lambda: then(result, error))

        reply.future().add_done_callback(on_done)

    def _start(self) -> None:
        self._await_reply(self._actor.start.remote(self._encoded_config), self._on_start)

    def _wait_exit(self) -> None:
        self._await_reply(self._actor.wait_exit.remote(self._incarnation, WATCH_TIMEOUT_S), self._on_exit_report)

    def _on_start(self, result: tuple[int, str] | None, error: BaseException | None) -> None:
        if result is None:
            self._on_call_failed(error, self._start)
            return
        self._unavailable_since = None
        self.pid, self.host = result
        self._forwarder.pid = self.pid
        self._wait_exit()

    def _on_exit_report(self, result: bytes | None, error: BaseException | None) -> None:
        if error:
            self._on_call_failed(error, self._wait_exit)
            return
        self._unavailable_since = None
        if result is None:
            self._wait_exit()
        else:
            self._finish(msgspec.msgpack.decode(result, type=ExitReport))

    def _on_status(self, result: bytes | None, error: BaseException | None) -> None:
        self._is_polling = False
        if result is not None and error is None:
            self._status = msgspec.msgpack.decode(result, type=ProcessStatus)
            self._forwarder.feed(self._status.output)

    def _on_call_failed(self, error: BaseException | None, retry: Callable[[], None]) -> None:
        """Handle a failed call: retry if Ray reports the actor as temporarily unavailable."""
        if isinstance(error, ActorUnavailableError):
            self._unavailable_since = self._unavailable_since or time.monotonic()
            self._retry = time.monotonic() + RETRY_INTERVAL_S, retry
            return
        self.is_actor_dead = isinstance(error, RayError)
        lines = str(error).strip().splitlines() or [""]
        self._finish(ExitReport(f"its Ray actor failed: {lines[-1]}", str(error)))

    def _finish(self, report: ExitReport) -> None:
        if not self.exited.is_set():
            self._exit_report = report
            self._forwarder.feed(report.output)
            self._forwarder.finish()
            self.exited.set()
            self._on_exit(self)
