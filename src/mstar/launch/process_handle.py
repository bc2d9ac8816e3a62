"""What the launcher holds of a child, wherever it runs: the two protocols between who decides and who starts."""

from __future__ import annotations

from signal import Signals
from threading import Event
from typing import Protocol

from mstar.config import ConductorConfig, WorkerConfig
from mstar.wire.messages import Suspect

ChildConfig = ConductorConfig | WorkerConfig
"""What a child is given."""


class ProcessHandle(Protocol):
    """One life of a child. What is called never waits."""

    exited: Event
    """It is dead, and nothing of it runs."""

    @property
    def pid(self) -> int:
        """Its number on its host; 0 if it is not known yet."""
        ...

    @property
    def host(self) -> str:
        """The address of its host, if there are several and it is known."""
        ...

    def configure(self, config: ChildConfig) -> None:
        """Tell it what it is to be."""
        ...

    def send_signal(self, signal_number: Signals) -> None:
        """Send it a signal, unless it has ended."""
        ...

    def cpu_seconds(self) -> float:
        """How many seconds of processor time it has used."""
        ...

    def loading_progress(self) -> tuple[int, str] | None:
        """How many components it has loaded, and which it loads now; None if it loads nothing."""
        ...

    def pending_reason(self) -> str:
        """What it waits for before it can begin; nothing if it has begun."""
        ...

    def is_unreachable(self) -> bool:
        """Whether it was killed, and its host does not answer: nobody can say whether it has ended."""
        ...

    def exit_reason(self) -> str:
        """How it ended."""
        ...

    def stderr_tail(self) -> str:
        """The end of what it wrote."""
        ...

    def crash_suspects(self) -> list[Suspect]:
        """What it was doing when it ended; what it left on its host is removed."""
        ...


class ProcessStarter(Protocol):
    """Starts children. It tells `died`, in any thread, of each that has ended."""

    def start(self, name: str) -> ProcessHandle:
        """A child that is nothing yet, and may become whoever has this name. Raises OSError."""
        ...

    def tick(self, now: float) -> None:
        """Time has passed."""
        ...

    def release(self, name: str) -> None:
        """This one will not be started again soon: keep no room for it."""
        ...

    def close(self) -> None:
        """Watch no more."""
        ...
