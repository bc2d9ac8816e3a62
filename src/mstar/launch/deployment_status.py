"""Status of a deployment for operators: restarts, rolling updates, loading progress and hosts of its processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

import msgspec

from mstar.launch.child import RestartStatus
from mstar.launch.supervisor import Supervisor
from mstar.launch.weights_rollout import RolloutStatus
from mstar.launch.worker_processes import current_children
from mstar.plan.shards import Shard


class DeploymentStatus:
    """View of a supervisor that other threads can read. Without a supervisor, nothing has started."""

    def __init__(self, supervisor: Supervisor | None, shards: Mapping[str, Shard]) -> None:
        self._supervisor = supervisor
        self._children = supervisor.children if supervisor else {}
        self._current = current_children(self._children)
        self._processes = supervisor.processes() if supervisor else {}
        self._shards = shards

    def restarts(self) -> dict[str, RestartStatus]:
        """Restarts and failed starts of each conductor and worker."""
        now = time.monotonic()
        starts = Counter[str]()
        for child in self._children.values():
            starts[child.peer.worker] += child.peer.incarnation + 1
        statuses = {name: child.restart_status(now) for name, child in self._current.items()}
        return {
            name: msgspec.structs.replace(status, restarts=max(0, starts[name] - 1))
            for name, status in statuses.items()
        }

    def rollout(self) -> RolloutStatus:
        """Rolling updates since the start."""
        return self._supervisor.rollout.status() if self._supervisor else RolloutStatus()

    def is_conductor_up(self, model: str) -> bool:
        """Whether the conductor of a model is up."""
        names = [name for name, shard in self._shards.items() if model in shard.models]
        return any(name in self._children and self._children[name].is_up for name in names)

    def loading_progress(self) -> dict[str, tuple[int, str]]:
        """Workers that are loading: number of loaded components, and the current one."""
        return {name: progress for name, process in self._processes.items() if (progress := process.loading_progress())}

    def devices(self) -> dict[str, Mapping[str, str]]:
        """Device of each loaded component, by worker. A worker that has not registered is missing."""
        return {name: child.devices for name, child in self._current.items() if child.devices}

    def nondeterminism(self) -> dict[str, Mapping[str, str]]:
        """Why results of components can depend on the batch, by worker."""
        return {name: child.nondeterminism for name, child in self._current.items()}

    def hosts(self) -> dict[str, str]:
        """Host address of each running child, if there are several hosts."""
        return {name: process.host for name, process in self._processes.items() if process.host}
