"""Protocols between the supervisor and the ways to start processes: `ProcessHandle` and `ProcessStarter`.

Implemented locally (`local_process`) and over Ray (`remote_process`, `ray_launcher`).
"""

from __future__ import annotations

from signal import Signals
from threading import Event
from typing import Protocol

from mstar.config import ConductorConfig, FrontendConfig, WorkerConfig
from mstar.wire.messages import ExitCause, Suspect

ChildConfig = ConductorConfig | FrontendConfig | WorkerConfig
"""Configuration of a child process."""


class ProcessHandle(Protocol):
    """One incarnation of a child process. No method blocks."""

    exited: Event
    """Set after the process has exited."""

    @property
    def pid(self) -> int:
        """Process id on its host; 0 if not known yet."""
        ...

    @property
    def host(self) -> str:
        """Address of its host, if there are several and it is known."""
        ...

    def configure(self, config: ChildConfig) -> None:
        """Send its configuration."""
        ...

    def send_signal(self, signal_number: Signals) -> None:
        """Send a signal, unless it has exited."""
        ...

    def cpu_seconds(self) -> float:
        """CPU time it has used, in seconds."""
        ...

    def loading_progress(self) -> tuple[int, str] | None:
        """Number of loaded components, and the one being loaded; None if it is not loading."""
        ...

    def pending_reason(self) -> str:
        """Why it has not started yet; empty if it has."""
        ...

    def is_unreachable(self) -> bool:
        """Whether it was killed and its host does not answer, so that its exit cannot be confirmed."""
        ...

    def exit_reason(self) -> str:
        """Exit signal or status."""
        ...

    def exit_cause(self) -> ExitCause:
        """Whether a request can be the cause of its exit."""
        ...

    def stderr_tail(self) -> str:
        """Tail of its output."""
        ...

    def crash_suspects(self) -> list[Suspect]:
        """Requests of its last batch. Removes the files that it left behind."""
        ...


class ProcessStarter(Protocol):
    """Starts child processes, and reports each exit to a callback, from any thread."""

    def start(self, name: str) -> ProcessHandle:
        """Start a child that can be configured as `name`. Raises OSError."""
        ...

    def tick(self, now: float) -> None:
        """Periodic tick."""
        ...

    def release(self, name: str) -> None:
        """Release the resources of a child that will not be restarted soon."""
        ...

    def close(self) -> None:
        """Stop watching."""
        ...
