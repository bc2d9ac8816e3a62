"""What processes, network, faults and checkers see of the simulation that they are part of.

It keeps them independent of `simulation`, which creates them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from mstar.sim.history import History
from mstar.sim.scenario import Scenario
from mstar.wire import messages as m


class Environment(Protocol):
    """Clock, event queue and shared parts of one simulation. Parts that depend on this protocol are `Any`."""

    scenario: Scenario
    trace: list[str] | None
    now: float
    rng: random.Random
    planned_models: Any
    shards: Any
    history: History
    checker: Any
    client_inputs: Any
    network: Any
    fault_injector: Any
    worker_processes: Any
    launcher: Any
    workers: tuple[str, ...]
    peers: dict[str, m.Peer]
    processes: dict[str, Any]
    inactive: set[str]
    weights_version: int
    weights_versions: dict[m.Peer, int]
    serving_versions: dict[str, int]
    non_idempotent_calls: list[tuple[int, ...]]

    def schedule_at(self, when: float, callback: Callable[..., None], *arguments: Any) -> None:
        """Call something at a virtual time."""
        ...

    def schedule_for(self, seconds: float, process: Any, callback: Callable[..., None], *arguments: Any) -> None:
        """Call something after a delay, if the process is still alive then."""
        ...

    def log(self, *parts: Any) -> None:
        """Add a line to the trace."""
        ...

    def mark_up(self, process: Any, peers: list[m.Peer]) -> None:
        """Note that a process has started."""
        ...

    def kill(self, peer: m.Peer, reason: str, cause: m.ExitCause) -> None:
        """Kill a process."""
        ...

    def start_worker(self, worker: str, beside: m.Peer | None = None) -> None:
        """Start a worker, or its successor."""
        ...

    def stop_worker(self, peer: m.Peer) -> None:
        """Stop a worker."""
        ...
