"""Which workers should run: as many as there is work for, and all of one edition of the weights.

A worker that is to go *leaves*: it gets no new requests, what runs there may end, states go elsewhere with the next
walk that uses them. When nothing of any request is there it is dismissed, and the launcher ends it. Whoever is still
there after a while is tried again elsewhere, unless that cannot be.

When there is a new edition, workers are replaced one by one. First each crew gets one that has it, then the others
leave. A request stays with the edition that it began with.

All of this happens on ticks. A deployment whose crews all run whole sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mstar.conductor import request_lifecycle
from mstar.conductor.scaling.model_loading import ModelLoading
from mstar.conductor.scaling.pending_workers import PendingWorkers
from mstar.conductor.scaling.replica_group import ReplicaGroup, build_replica_groups, scale_down, update_target
from mstar.wire import messages as m

if TYPE_CHECKING:
    from mstar.conductor.core import ConductorCore, ConductorModel, Worker
    from mstar.conductor.requests import Request
    from mstar.plan.tables import Plan

EVALUATION_INTERVAL_S = 0.2
"""Seconds between two looks: workers say so often what they have to do."""
STARTUP_SETTLE_S = 2.0
"""A conductor that has started waits so many seconds until it knows who is there."""
STOP_DELAY_S = 1.0
"""So many seconds after nothing is there any more a worker is dismissed: what it said last has arrived."""
MAX_RECENT_REQUESTS = 4096
"""Of so many requests that ended last it is known which edition they had."""


class Autoscaler:
    """Who should run, under one conductor."""

    def __init__(self, launcher: m.Peer, models: Mapping[str, ConductorModel]) -> None:
        self.groups = build_replica_groups(models)
        self.model_loading = ModelLoading(self.groups)
        self.weights_version = 0
        """The newest edition that is known of."""
        self.inactive: set[str] = set()
        """Workers that nobody is sent to: they do not run, or will not for long."""
        self.stopping: dict[str, m.Peer] = {}
        """Workers that were dismissed and have not ended."""
        self.recent_versions: dict[str, int] = {}
        """With which edition requests were served that have ended: a client may miss something and come again."""
        self.pending_workers = PendingWorkers()
        self._launcher = launcher
        self._is_elastic = any(crew.is_elastic for crew in self.groups)
        self._is_rolling_out = False
        self._is_uniform = True
        """Whether all workers have one edition, and none leaves."""
        self._idle_since: dict[str, float] = {}
        """Since when nothing is at workers that leave."""
        self._started_at: float | None = None
        self._is_settled = False
        self._last_evaluated_at = float("-inf")

    # ---------------------------------------------------------------- what happens
    @property
    def is_active(self) -> bool:
        """Whether there is anything to decide."""
        return self._is_elastic or self._is_rolling_out or bool(self.model_loading)

    def start_rollout(self, weights_version: int) -> None:
        """There is a new edition, which workers that are started load."""
        if weights_version >= self.weights_version:
            self.weights_version = weights_version
            self._is_rolling_out = True

    def on_request_finished(self, request: Request) -> None:
        """A request is over."""
        if request.weights_version is not None:
            self.recent_versions[request.rid] = request.weights_version
            if len(self.recent_versions) > MAX_RECENT_REQUESTS:
                del self.recent_versions[next(iter(self.recent_versions))]

    def on_worker_started(self, core: ConductorCore, now: float, worker: Worker) -> None:
        """A worker is up."""
        name = worker.peer.name
        self.pending_workers.on_started(now, name)
        self.inactive.discard(name)
        self.weights_version = max(self.weights_version, worker.weights_version)
        self._is_rolling_out |= any(one.weights_version < self.weights_version for one in core.workers.values())
        self._update_uniformity(core)

    def on_worker_lost(self, core: ConductorCore, now: float, peer: m.Peer) -> None:
        """A worker is no longer there; unless it was dismissed, the launcher starts it again."""
        self._idle_since.pop(peer.name, None)
        if self.is_active and self.stopping.get(peer.name) != peer:
            self.pending_workers.on_lost(now, peer.name)
        self._update_uniformity(core)

    def _update_uniformity(self, core: ConductorCore) -> None:
        workers = core.workers.values()
        self._is_uniform = all(
            one.draining_since is None and one.weights_version == self.weights_version for one in workers
        )

    def on_process_exited(self, peer: m.Peer) -> bool:
        """A process has ended; whether it was dismissed before."""
        if self.stopping.get(peer.name) == peer:
            del self.stopping[peer.name]
            return True
        self.pending_workers.on_exited(peer.name)
        return False

    def stats(self, core: ConductorCore) -> dict[str, int]:
        """Workers that are wanted and not up, those that leave, those that are being ended; and each by its name."""
        leaving = {name for name, worker in core.workers.items() if worker.draining_since is not None}
        wanted = self.pending_workers.pending_since
        counts = {"starting": len(wanted), "draining": len(leaving), "stopping": len(self.stopping)}
        if self.is_active:
            for name in dict.fromkeys(name for crew in self.groups for name in crew.workers):
                counts |= {f"starting {name}": int(name in wanted), f"draining {name}": int(name in leaving)}
        return counts

    # ---------------------------------------------------------------- seats
    def eligible_workers(self, core: ConductorCore, request: Request, plan: Plan) -> dict[str, m.Peer]:
        """The workers that a walk may use. Of those that leave, only where no other has its edition."""
        if self._is_uniform and request.weights_version in (None, self.weights_version):
            return {name: worker.peer for name, worker in core.workers.items()}
        edition = (
            request.weights_version if request.weights_version is not None else _weights_version_for(core, request)
        )
        fit = [worker for worker in core.workers.values() if worker.weights_version == edition]
        found = {worker.peer.name: worker.peer for worker in fit if worker.draining_since is None}
        if request.weights_version is not None:
            for spot in plan.worker_sets:
                if not any(name in found for name in spot.workers):
                    found |= {one.peer.name: one.peer for one in fit if one.peer.name in spot.workers}
        return found

    def is_weights_version_lost(self, core: ConductorCore, request: Request, plan: Plan) -> bool:
        """Whether nobody has the edition that a request began with, and nobody will."""
        if request.weights_version is None or request.weights_version >= self.weights_version:
            return False
        names = {name for name, worker in core.workers.items() if worker.weights_version == request.weights_version}
        return any(names.isdisjoint(spot.workers) for spot in plan.worker_sets)

    def is_worker_starting(self, core: ConductorCore, plan: Plan) -> bool:
        """Whether somebody starts who could take a seat, or leaves and is then started again."""
        leaving = {name for name, worker in core.workers.items() if worker.draining_since is not None}
        names = {name for spot in plan.worker_sets for name in spot.workers}
        return not names.isdisjoint(leaving | self.pending_workers.pending_since.keys() | self.stopping.keys())

    # ---------------------------------------------------------------- on ticks
    def step(self, core: ConductorCore, now: float) -> None:
        """See who is needed, and who is not."""
        if not self.is_active or core.limits.has_fixed_workers or now - self._last_evaluated_at < EVALUATION_INTERVAL_S:
            return
        self._last_evaluated_at, was_even = now, self._is_uniform
        is_settled = self._check_settled(core, now)
        self._scale_up(core, now, is_settled=is_settled)
        if is_settled:
            if self._is_rolling_out:
                self._continue_rollout(core, now)
            else:
                for crew in self.groups:
                    scale_down(core, now, crew, self.pending_workers.last_start_s)
                _drain_surplus(core, now)
            self._stop_drained(core, now)
        there = {
            name for name, worker in core.workers.items() if worker.draining_since is None
        } | self.pending_workers.pending_since.keys()
        self.inactive.clear()
        self.inactive.update({name for crew in self.groups if crew.is_elastic for name in crew.workers} - there)
        self._update_uniformity(core)
        if not (was_even and self._is_uniform):  # who may sit where may have changed
            request_lifecycle.place_waiting(core)

    def _scale_up(self, core: ConductorCore, now: float, *, is_settled: bool) -> None:
        """Have as many started as there is work for."""
        models = {request.submit.model for request in core.requests.values()} | self.model_loading.loading(core)
        waits = [one.submit.model for one in core.requests.values() if one.route is None]
        self.pending_workers.expire(now)
        for crew in self.groups:
            if not models.isdisjoint(crew.models):
                crew.last_requested_at = now
            if crew.is_elastic:
                update_target(core, now, crew, waits, self.pending_workers.pending_since)
            if is_settled or (crew.last_requested_at == now and not crew.running(core)):
                self._start_missing(core, now, crew)

    def _check_settled(self, core: ConductorCore, now: float) -> bool:
        """Whether it is known by now who is there."""
        if self._started_at is None:
            self._started_at = now
        is_settled = now - self._started_at >= min(STARTUP_SETTLE_S, core.limits.scale_down_delay_s)
        if is_settled and not self._is_settled:
            self._is_settled = True
            for crew in self.groups:  # they were started for a reason, which a conductor before this one knew
                crew.target = max(crew.target, len(crew.running(core)))
        return is_settled

    def _start_missing(self, core: ConductorCore, now: float, group: ReplicaGroup) -> None:
        """Have as many started as are lacking; one that leaves, and could stay, comes first."""
        lacking = group.target - len(group.running(core)) - len(self.pending_workers.expected(now, group.workers))
        for worker in [core.workers[name] for name in group.workers if name in core.workers]:
            if lacking > 0 and worker.draining_since is not None and worker.weights_version == self.weights_version:
                worker.draining_since = None
                self._idle_since.pop(worker.peer.name, None)
                lacking -= 1
        for name in self._stopped_workers(core, group)[: max(0, lacking)]:
            self._start_worker(core, now, name)
        for name in self.pending_workers.due_for_retry(now, group.workers):
            core.send(self._launcher, m.StartWorker(name))

    def _stopped_workers(self, core: ConductorCore, group: ReplicaGroup) -> list[str]:
        """Those that do not run, the one that was not wanted for the longest time first."""
        taken = core.workers.keys() | self.pending_workers.pending_since.keys() | self.stopping.keys()
        return self.pending_workers.least_recently_requested(name for name in group.workers if name not in taken)

    def _start_worker(self, core: ConductorCore, now: float, name: str) -> None:
        self.pending_workers.request_start(now, name)
        core.send(self._launcher, m.StartWorker(name))

    def _continue_rollout(self, core: ConductorCore, now: float) -> None:
        """Replace one worker that has an older edition, when nothing else is under way."""
        is_awaited = bool(self.pending_workers.expected(now, self.pending_workers.pending_since))
        if is_awaited or self.stopping or any(worker.draining_since is not None for worker in core.workers.values()):
            return
        stale = {name for name, worker in core.workers.items() if worker.weights_version < self.weights_version}
        if not stale:
            self._is_rolling_out = False
            core.send(self._launcher, m.WeightsRolled(self.weights_version))
            return
        crews = [crew for crew in self.groups if not stale.isdisjoint(crew.workers)]
        behind = [
            crew
            for crew in crews
            if all(worker.weights_version < self.weights_version for worker in crew.running(core))
        ]
        crew = (behind or crews)[0]
        spare = self._stopped_workers(core, crew)
        if spare and len(crew.running(core)) <= crew.target:
            self._start_worker(core, now, spare[0])
        else:
            old = [worker for worker in crew.running(core) if worker.weights_version < self.weights_version]
            min(old, key=lambda worker: (worker.weights_version, worker.running_walks)).draining_since = now

    # ---------------------------------------------------------------- leaving
    def _stop_drained(self, core: ConductorCore, now: float) -> None:
        """Have those ended that leave and hold nothing."""
        for worker in [worker for worker in core.workers.values() if worker.draining_since is not None]:
            peer = worker.peer
            if worker.weights_version == self.weights_version and not _is_surplus(core, worker):
                continue  # it will be asked to stay
            if any(_needs_draining_worker(core, now, request, worker) for request in core.requests.values()):
                self._idle_since.pop(peer.name, None)
                continue
            is_needed = any(request.needs(peer) for request in core.requests.values())
            if is_needed or now - self._idle_since.setdefault(peer.name, now) >= STOP_DELAY_S:
                self.stopping[peer.name] = peer
                core.send(self._launcher, m.StopWorker(peer))
                core.on_worker_lost(now, peer, (), f"worker {peer} was to leave")


def _weights_version_for(core: ConductorCore, request: Request) -> int | None:
    """The edition that a request begins with: the newest that is everywhere; the oldest if it began before."""
    is_again = request.submit.last_seen_attempt >= 0
    editions = sorted({worker.weights_version for worker in core.workers.values()}, reverse=not is_again)
    crews = [crew.running(core) for crew in core.autoscaler.groups if request.submit.model in crew.models]
    for edition in editions:
        is_newest = edition == core.autoscaler.weights_version  # whoever is started will have that
        if all(any(one.weights_version == edition for one in crew) or (is_newest and not crew) for crew in crews):
            return edition
    return None


def _drain_surplus(core: ConductorCore, now: float) -> None:
    """Have those leave that no crew needs, the idlest first."""
    for crew in core.autoscaler.groups:
        running = crew.running(core)
        free = [worker for worker in running if _is_surplus(core, worker)] if len(running) > crew.target else []
        if free:
            min(reversed(free), key=lambda worker: worker.running_walks).draining_since = now


def _is_surplus(core: ConductorCore, worker: Worker) -> bool:
    """Whether all crews of a worker that stays have more than they should, or of one that leaves, enough."""
    more = worker.draining_since is None
    crews = [crew for crew in core.autoscaler.groups if worker.peer.name in crew.workers]
    return all(len(crew.running(core)) >= crew.target + more for crew in crews)


def _needs_draining_worker(core: ConductorCore, now: float, request: Request, worker: Worker) -> bool:
    """Whether a worker that leaves has to stay for a request."""
    if request.weights_version == worker.weights_version:
        crews = [crew for crew in core.autoscaler.groups if request.submit.model in crew.models]
        others = [crew.running(core) for crew in crews if worker.peer.name in crew.workers]
        if any(all(one.weights_version != worker.weights_version for one in crew) for crew in others):
            return True  # nobody else could go on with it
    if worker.draining_since is None or not request.needs(worker.peer):
        return False
    return now - worker.draining_since < core.limits.drain_timeout_s or request_lifecycle.is_non_retryable(
        core, request
    )
