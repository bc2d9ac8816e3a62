"""Loading and unloading of models on request.

An unloaded model keeps no worker to itself: once its requests are finished, the autoscaler drains and stops the workers
that no other model needs. The next request for the model, or a load command, loads it again. A conductor that restarts
has all models loaded.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from mstar.conductor.limits import ConductorLimits
from mstar.conductor.outbox import Outbox
from mstar.conductor.scaling.fleet import Fleet
from mstar.conductor.scaling.replica_group import ReplicaGroup
from mstar.wire import messages as m

LOADED = "loaded"
LOADING = "loading"
UNLOADED = "unloaded"

ModelCommand = m.UnloadModel | m.LoadModel | m.ModelStatusQuery


class ModelLoading:
    """Unloaded and loading models of one conductor."""

    def __init__(self, models: Collection[str], fleet: Fleet, limits: ConductorLimits, outbox: Outbox) -> None:
        self._models = models
        self._fleet = fleet
        self._has_fixed_workers = limits.has_fixed_workers
        self._outbox = outbox
        self._unloaded: set[str] = set()
        """Models that were unloaded on request."""
        self._loading: set[str] = set()
        """Models that were loaded again and do not have their minimum replicas yet."""

    @property
    def is_active(self) -> bool:
        """Whether some model is unloaded or loading."""
        return bool(self._unloaded or self._loading)

    def on_command(self, frontend: m.Peer, message: ModelCommand) -> None:
        """Execute a command of a front end and reply with the states of all models."""
        reason = ""
        if isinstance(message, m.UnloadModel):
            reason = self._unload(message.model)
        elif isinstance(message, m.LoadModel):
            self._load(message.model)
        states = {model: self._state(model) for model in self._models}
        self._outbox.send(frontend, m.ModelStatusReply(message.correlation_id, states, reason))

    def on_submit(self, model: str) -> None:
        """Load a model that a request needs."""
        if model in self._unloaded:
            self._load(model)

    def loading(self) -> set[str]:
        """Return the models that are still loading. They count as requested."""
        self._loading -= {
            model
            for model in self._loading
            if all(self._has_min_replicas(group) for group in self._fleet.groups_of_model(model))
        }
        return self._loading

    def _unload(self, model: str) -> str:
        """Unload a model; return why it cannot be unloaded, or an empty string."""
        if reason := self._unload_blocker(model):
            return reason
        self._unloaded.add(model)
        self._loading.discard(model)
        for group in self._fleet.groups:
            if not group.is_unloaded and group.models <= self._unloaded:
                group.is_unloaded, group.surplus_since, group.overloaded_since = True, inf, inf
        return ""

    def _unload_blocker(self, model: str) -> str:
        if self._has_fixed_workers:
            return "its workers run inside the server process\n  fix: serve without --in-process"
        unloaded = self._unloaded | {model}
        staying = [group for group in self._fleet.groups if not group.models <= unloaded]
        own = {name for group in self._fleet.groups if model in group.models for name in group.workers}
        if own - {name for group in staying for name in group.workers}:
            return ""
        shared = [group for group in staying if not own.isdisjoint(group.workers)]
        others = sorted({name for group in shared for name in group.models - unloaded})
        if not others:
            return "it has no workers"
        return (
            f"it shares all its workers with {', '.join(others)}\n  fix: give it a worker of its own in its placement"
        )

    def _load(self, model: str) -> None:
        if self._has_fixed_workers:
            return
        self._unloaded.discard(model)
        self._loading.add(model)
        for group in self._fleet.groups_of_model(model):
            group.is_unloaded = False
            group.target = max(group.target, group.min_replicas)

    def _state(self, model: str) -> str:
        if model in self._unloaded:
            return UNLOADED
        empty = [group for group in self._fleet.groups_of_model(model) if not self._fleet.serving(group)]
        if not empty:
            return LOADED
        is_coming = model in self._loading or all(group.target for group in empty)
        return LOADING if is_coming else UNLOADED

    def _has_min_replicas(self, group: ReplicaGroup) -> bool:
        return len(self._fleet.serving(group)) >= max(1, group.min_replicas)
