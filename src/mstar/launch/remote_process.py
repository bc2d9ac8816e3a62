"""A child on another host, as the launcher holds it: what its keeper says, and what to ask it next.

Nothing here waits for a host. A keeper that does not answer is asked again; only its word, or that of Ray, that a
process has ended makes it so. Whoever was told to die and is not heard of is *lost*: its place may be given to another
life, and its keeper ends it first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from signal import SIGKILL, Signals
from threading import Event
from typing import Any

import msgspec
from ray.exceptions import ActorUnavailableError, RayError

from mstar.launch.process import write_stderr
from mstar.launch.process_handle import ChildConfig
from mstar.launch.ray_actor import ExitReport, ProcessStatus
from mstar.wire.messages import Suspect

RETRY_INTERVAL_S = 0.3
"""How long after a keeper did not answer it is asked again."""
WATCH_TIMEOUT_S = 20.0
"""How long one question for a death is open; then it is asked anew, so that none is left behind for ever."""
UNREACHABLE_AFTER_S = 1.0
"""How long after it was killed a child that is not known to have ended is lost."""

CallSoon = Callable[[Callable[[], None]], None]
"""Runs something on the launcher's loop, soon."""


class RemoteProcess:
    """One life of a child. All but `send` and the plain questions happens on the launcher's loop."""

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
        """Ray will not start its keeper again."""
        self._actor = actor
        self._call_soon = call_soon
        self._on_exit = on_exit
        self._find_pending_reason = pending_reason
        self._encoded_config = b""
        self._incarnation = -1
        self._retry: tuple[float, Callable[[], None]] | None = None
        self._is_polling = False
        self._is_unresponsive = False
        self._status = ProcessStatus()
        self._killed_at: float | None = None
        self._exit_report = ExitReport("")

    # ---------------------------------------------------------------- what the supervisor asks
    def configure(self, config: ChildConfig) -> None:
        """Have its keeper start it, as soon as there is one."""
        self._encoded_config = msgspec.msgpack.encode(config)
        self._incarnation = config.incarnation
        self._start()

    def send_signal(self, signal_number: Signals) -> None:
        """Send it a signal, if it can be reached."""
        if signal_number == SIGKILL and self._killed_at is None:
            self._killed_at = time.monotonic()
        self._actor.send_signal.remote(self._incarnation, int(signal_number))

    def cpu_seconds(self) -> float:
        """How many seconds of processor time it had used when its keeper looked last."""
        if self.pid and not self._is_polling:
            self._is_polling = True
            self._await_reply(self._actor.status.remote(), self._on_status)
        return self._status.cpu_s

    def loading_progress(self) -> tuple[int, str] | None:
        """How many components it has loaded, and which it loads now; None if it loads nothing."""
        return self._status.loading

    def pending_reason(self) -> str:
        """What it waits for before it can begin; nothing if it has begun."""
        if self.pid:
            return ""
        return self._find_pending_reason() or ("its host does not answer" if self._is_unresponsive else "")

    def is_unreachable(self) -> bool:
        """Whether it was killed, and nobody can say whether it has ended."""
        return self._killed_at is not None and (
            self._is_unresponsive or time.monotonic() - self._killed_at > UNREACHABLE_AFTER_S
        )

    def exit_reason(self) -> str:
        """How it ended."""
        return self._exit_report.reason

    def stderr_tail(self) -> str:
        """The end of what it wrote."""
        return self._exit_report.stderr_tail

    def crash_suspects(self) -> list[Suspect]:
        """What it was doing when it ended, if its keeper could say."""
        return self._exit_report.suspects

    def tick(self, now: float) -> None:
        """Ask again what was not answered."""
        if self._retry and self._retry[0] <= now:
            (_, question), self._retry = self._retry, None
            question()

    # ---------------------------------------------------------------- what its keeper is asked
    def _await_reply(self, reply: Any, then: Callable[[Any, BaseException | None], None]) -> None:
        def answered(future: Any) -> None:
            error = future.exception()
            result = None if error else future.result()
            self._call_soon(lambda: then(result, error))

        reply.future().add_done_callback(answered)

    def _start(self) -> None:
        self._await_reply(self._actor.start.remote(self._encoded_config), self._on_start)

    def _wait_exit(self) -> None:
        self._await_reply(self._actor.wait_exit.remote(self._incarnation, WATCH_TIMEOUT_S), self._on_exit_report)

    def _on_start(self, result: tuple[int, str] | None, error: BaseException | None) -> None:
        if result is None:
            self._on_call_failed(error, self._start)
            return
        self._is_unresponsive = False
        self.pid, self.host = result
        self._wait_exit()

    def _on_exit_report(self, result: bytes | None, error: BaseException | None) -> None:
        if error:
            self._on_call_failed(error, self._wait_exit)
            return
        self._is_unresponsive = False
        if result is None:
            self._wait_exit()
        else:
            self._finish(msgspec.msgpack.decode(result, type=ExitReport))

    def _on_status(self, result: bytes | None, error: BaseException | None) -> None:
        self._is_polling = False
        if result is not None and error is None:
            self._status = msgspec.msgpack.decode(result, type=ProcessStatus)
            write_stderr(self._status.output)

    def _on_call_failed(self, error: BaseException | None, retry: Callable[[], None]) -> None:
        """No answer: ask again if Ray says that there may be one."""
        if isinstance(error, ActorUnavailableError):
            self._is_unresponsive = True
            self._retry = time.monotonic() + RETRY_INTERVAL_S, retry
            return
        self.is_actor_dead = isinstance(error, RayError)
        lines = str(error).strip().splitlines() or [""]
        self._finish(ExitReport(f"could not be kept: {lines[-1]}", str(error)))

    def _finish(self, report: ExitReport) -> None:
        if not self.exited.is_set():
            self._exit_report = report
            write_stderr(report.output)
            self.exited.set()
            self._on_exit(self)
