"""Loading and unloading of models on request.

An unloaded model keeps no worker to itself: once its requests are finished, the autoscaler drains and stops the workers
that no other model needs. The next request for the model, or a load command, loads it again. A conductor that restarts
has all models loaded.

A load command also retries workers in a crash loop at once, and an unload command stops them.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from mstar.conductor.limits import ConductorLimits
from mstar.conductor.outbox import Outbox
from mstar.conductor.requests import is_resubmitted
from mstar.conductor.scaling.fleet import Fleet
from mstar.conductor.scaling.replica_group import ReplicaGroup
from mstar.wire import messages as m

LOADED = "loaded"
LOADING = "loading"
UNLOADED = "unloaded"
FAILING = "failing"
"""All workers of a group of the model are in a crash loop."""

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

    def rejection(self, now: float, submit: m.Submit) -> m.RequestRejected | None:
        """Return the rejection of a request whose model has a group with all workers in a crash loop, else None."""
        if self._fleet.crash_loops.is_empty or is_resubmitted(submit):
            return None  # it has started, and waits like all requests that run
        for group in self._fleet.groups_of_model(submit.model):
            if failing := self._fleet.failing_workers(group):
                worker = max(failing, key=lambda starts: starts.count)
                reason = (
                    f"worker {worker.peer.worker} of the model `{submit.model}` failed to start {worker.count} times"
                )
                retry_after_s = self._fleet.crash_loops.retry_after_s(now, group.workers)
                return m.RequestRejected(submit.rid, 503, f"{reason}; fix: see the log of the server", retry_after_s)
        return None

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
                self._stop_failing(group)
        return ""

    def _stop_failing(self, unloaded_group: ReplicaGroup) -> None:
        """Stop the workers of an unloaded group that are in a crash loop: they never register, so they never drain."""
        for starts in self._fleet.crash_loops.find(unloaded_group.workers):
            groups = self._fleet.groups_of_worker(starts.peer.worker)
            if all(group.is_unloaded or group.models <= self._unloaded for group in groups):
                self._fleet.crash_loops.remove(starts.peer.worker)
                self._fleet.pending_workers.cancel_start(starts.peer)

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
            for starts in self._fleet.crash_loops.find(group.workers):
                self._outbox.send_launcher(m.StartWorker(starts.peer.worker, skip_backoff=True))

    def _state(self, model: str) -> str:
        if model in self._unloaded:
            return UNLOADED
        empty = [group for group in self._fleet.groups_of_model(model) if not self._fleet.serving(group)]
        if not empty:
            return LOADED
        if any(self._fleet.failing_workers(group) for group in empty):
            return FAILING
        is_coming = model in self._loading or all(group.target for group in empty)
        return LOADING if is_coming else UNLOADED

    def _has_min_replicas(self, group: ReplicaGroup) -> bool:
        return len(self._fleet.serving(group)) >= max(1, group.min_replicas)
