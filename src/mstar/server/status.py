"""Status of the server and of its worker processes, as /ready and the live feed report it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    """Phase of a server (starting, ready or draining), with start-up progress."""

    name: str
    done: int = 0
    """Processes that have started."""
    total: int = 0


@dataclass(frozen=True, slots=True)
class WorkerProcessStatus:
    """Status of one worker process."""

    state: str
    """up, starting, down or stopped."""
    component: str = ""
    """Component that it is loading."""
    done: int = 0
    """Components that it has loaded."""
    total: int = 0
    host: str = ""
    """Host that it runs on, empty on a single host."""
