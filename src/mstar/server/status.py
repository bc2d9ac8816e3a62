"""Status of the server, of its worker processes and of its models, as /ready, /metrics and the live feed report it.

A model is ready if its conductor is up and each of its replica groups has a worker that is up. The status of the
processes comes from the launcher, so it is known without a query.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mstar.plan.tables import Plans


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
    """up, starting, restarting (after a failed start), down (until its first restart) or stopped (not needed)."""
    component: str = ""
    """Component that it is loading."""
    done: int = 0
    """Components that it has loaded."""
    total: int = 0
    host: str = ""
    """Host that it runs on, empty on a single host."""
    restarts: int = 0
    """Restarts since the server started."""
    failed_starts: int = 0
    """Failed starts in a row."""
    next_start_in_s: float = 0.0
    """Seconds until the next attempt to start it; 0 if one is in progress."""
    devices: Mapping[str, str] = field(default_factory=dict[str, str])
    """Torch device of each component that it has loaded, by "model.component"."""
    nondeterminism: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why results of a component can depend on the batch, by "model.component"."""

    @property
    def text(self) -> str:
        """The state, and the attempts of a worker that fails to start."""
        if self.state != "restarting":
            return self.state
        next_start = f"next attempt in {self.next_start_in_s:.0f} s" if self.next_start_in_s else "starting now"
        return f"restarting, {self.failed_starts} failed attempts, {next_start}"


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """Rolling updates of the weights since the server started."""

    state: str = ""
    """running or failed (the last one); empty otherwise."""
    error: str = ""
    """Why the last one failed."""
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class ModelReadiness:
    """Whether a model can serve a request now."""

    state: str
    """ready, loading, failing (a worker fails to start), unloaded, or no conductor."""
    workers: Mapping[str, str]
    """State of each worker that is needed and not up."""

    @property
    def is_ready(self) -> bool:
        """Whether a request is served without waiting for a worker."""
        return self.state == "ready"

    @property
    def is_missing(self) -> bool:
        """Whether the model should be ready and is not. An unloaded model is loaded by its next request."""
        return self.state not in ("ready", "unloaded")


def component_devices(
    model: str, components: Iterable[str], statuses: Mapping[str, WorkerProcessStatus]
) -> dict[str, dict[str, str]]:
    """Device of each loaded component of one model, by worker. Workers that have loaded none of them are left out."""
    names = {f"{model}.{component}": component for component in components}
    devices = {
        worker: {names[name]: device for name, device in status.devices.items() if name in names}
        for worker, status in statuses.items()
        if status.state == "up"
    }
    return {worker: loaded for worker, loaded in devices.items() if loaded}


def model_nondeterminism(
    model: str, components: Iterable[str], statuses: Mapping[str, WorkerProcessStatus]
) -> dict[str, str] | None:
    """Why results of components of one model can depend on the batch; None if no worker has loaded all of them."""
    names = {f"{model}.{component}": component for component in components}
    loaded = [status for status in statuses.values() if status.state == "up"]
    if not names.keys() <= {name for status in loaded for name in status.devices}:
        return None
    return {names[name]: reason for status in loaded for name, reason in status.nondeterminism.items() if name in names}


def model_readiness(
    plans: Plans, statuses: Mapping[str, WorkerProcessStatus], *, is_conductor_up: bool
) -> ModelReadiness:
    """Readiness of one model. A worker without a status counts as up: a deployment in one process has none."""
    up = WorkerProcessStatus("up")
    groups = [{name: statuses.get(name, up) for name in workers} for workers, _ in plans.replica_groups]
    empty = [group for group in groups if all(status.state != "up" for status in group.values())]
    needed = [[status for status in group.values() if status.state != "stopped"] for group in empty]
    workers = {
        name: status.text for group in empty for name, status in group.items() if status.state not in ("up", "stopped")
    }
    if not is_conductor_up:
        return ModelReadiness("no conductor", workers)
    if not empty:
        return ModelReadiness("ready", {})
    if not all(needed):
        return ModelReadiness("unloaded", workers)
    is_failing = any(all(status.failed_starts for status in group) for group in needed)
    return ModelReadiness("failing" if is_failing else "loading", workers)
