"""The conductor's sans-IO core: takes events, returns messages to send. No IO, clock, threads or tensors.

The core wires its parts together and dispatches events to them; each part owns its data:

| part | owns |
|---|---|
| `Membership` | workers, front ends, dead peers, readiness |
| `FailureDetector` | heartbeats, signs of life of workers |
| `Admission` (`FairQueue`, `CapacityEstimator`) | queue, running limit, load reports |
| `Attempts` | attempt numbers, attempts that workers have not released |
| `RequestLifecycle` (`WalkDispatcher`, `WaitingWalks`, `RequestTimeouts`) | requests, their routes and walks |
| `Lookaheads` | walks that run early, until their routes commit or drop them |
| `RequestRetries` (`CrashHistory`), `WalkReports` | retries after lost workers, poison requests; reports of workers |
| `Autoscaler`, `Rollout`, `ModelLoading` | replica targets, rolling updates, unloaded models |
| `Fleet` (`ReplicaGroup`, `PendingWorkers`, `WeightsVersions`) | groups, starting workers, weights versions |
| `CrashLoops` | workers that fail to start |
| `RequestSpans` | trace spans |

Parts get the parts they use in their constructors and write messages to one `Outbox`. Started and lost workers reach
them through `Membership.subscribe`, unresponsive ones through `FailureDetector.subscribe`. No part imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from mstar.conductor.admission import Admission
from mstar.conductor.attempts import Attempts
from mstar.conductor.capacity import CapacityEstimator
from mstar.conductor.dispatch.walk_dispatch import WalkDispatcher
from mstar.conductor.limits import ConductorLimits
from mstar.conductor.liveness.failure_detector import FailureDetector
from mstar.conductor.membership import Membership, WorkerLost
from mstar.conductor.model import ConductorModel
from mstar.conductor.outbox import Outbox
from mstar.conductor.recovery.request_retries import RequestRetries
from mstar.conductor.request_lifecycle import RequestLifecycle
from mstar.conductor.scaling.autoscaler import Autoscaler
from mstar.conductor.scaling.crash_loops import CrashLoops
from mstar.conductor.scaling.fleet import Fleet
from mstar.conductor.scaling.model_loading import ModelLoading
from mstar.conductor.scaling.pending_workers import PendingWorkers
from mstar.conductor.scaling.replica_group import build_replica_groups
from mstar.conductor.scaling.rollout import Rollout
from mstar.conductor.scaling.weights_versions import WeightsVersions
from mstar.conductor.spans import RequestSpans
from mstar.conductor.timeouts import RequestTimeouts
from mstar.conductor.walk_reports import WalkReports
from mstar.failpoints import hit
from mstar.wire import messages as m
from mstar.wire.active_clock import ActiveClock
from mstar.wire.message import MessageReceived, SendMessage, Tick

Event = MessageReceived | Tick


class ConductorCore:
    """One conductor: `step(now, event)` returns the messages to send."""

    def __init__(
        self,
        peer: m.Peer,
        launcher: m.Peer,
        models: Mapping[str, ConductorModel],
        limits: ConductorLimits | None = None,
    ) -> None:
        self.peer = peer
        self.launcher = launcher
        self.models = models
        self.limits = limits = limits or ConductorLimits()
        self._outbox = outbox = Outbox(launcher)
        self.request_spans = spans = RequestSpans()
        groups = build_replica_groups(models)
        known = {name for model in models.values() for name in model.plans.workers}
        initial = {name for group in groups for name in group.workers[: group.min_replicas]}
        self.membership = membership = Membership(outbox, known, initial)
        self.failure_detector = FailureDetector(membership, outbox, limits)
        self.capacity = CapacityEstimator(models)
        self.attempts = attempts = Attempts(peer, limits, membership, outbox)
        self.admission = Admission(limits, self.capacity, attempts)
        self.versions = versions = WeightsVersions(groups, membership)
        self.crash_loops = crash_loops = CrashLoops()
        self.pending_workers = PendingWorkers(membership, crash_loops, outbox)
        fleet = Fleet(groups, membership, self.pending_workers, crash_loops, versions)
        dispatcher = WalkDispatcher(membership, versions, outbox, spans)
        self.lifecycle = RequestLifecycle(dispatcher, self.admission, attempts, versions, outbox, spans)
        self.retries = RequestRetries(self.lifecycle, dispatcher, attempts, versions, spans)
        self.walk_reports = WalkReports(self.lifecycle, self.retries, dispatcher)
        self.model_loading = ModelLoading(models, fleet, limits, outbox)
        self.rollout = Rollout(fleet, limits, outbox)
        self.autoscaler = Autoscaler(fleet, limits, self.capacity, self.lifecycle, self.rollout, self.model_loading)
        self._timeouts = RequestTimeouts(self.lifecycle, self.retries, self.admission, fleet, limits)
        self.clock = ActiveClock()
        membership.subscribe(
            started=(
                lambda _, worker: crash_loops.remove(worker.peer.worker),
                self.capacity.on_worker_started,
                self.autoscaler.on_worker_started,
                lambda now, _: self.lifecycle.place_waiting(now),
            ),
            lost=(
                self._drop_load,
                self.autoscaler.on_worker_lost,
                attempts.on_worker_lost,
                self.retries.on_worker_lost,
            ),
        )
        self.failure_detector.subscribe((attempts.on_worker_unresponsive, self.retries.on_worker_unresponsive))
        self._is_drained = False

    def step(self, now: float, event: Event) -> list[SendMessage]:
        """Handle an event; return the messages to send, in order."""
        self.request_spans.now = now
        now = self.clock.advance(now)  # pauses of this process shift all deadlines
        self.request_spans.paused_s = self.clock.paused_s
        match event:
            case MessageReceived():
                self._receive(now, event.sender, event.message)
            case Tick():
                self._tick(now)
            case _:
                assert_never(event)
        self._admit(now)
        return self._outbox.drain()

    def stats(self) -> dict[str, int]:
        """Return the number of requests, workers and so on, for metrics."""
        return {
            "requests": len(self.lifecycle.requests),
            "queue": self.admission.queue_length,
            "unreleased": len(self.attempts),
            "workers": len(self.membership.workers),
        } | self.autoscaler.stats()

    # ---------------------------------------------------------------- dispatch
    def _receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        self.failure_detector.on_message(now, sender)
        match message:
            case m.SeatDone() | m.AttemptFailed() | m.RetryNeeded() | m.LookaheadLost():
                self.walk_reports.on_report(now, sender, message)
            case m.AttemptReleased():
                self.attempts.on_released(message.rid, message.attempt, sender)
            case m.Submit():
                self._submit(now, sender, message)
            case m.ClientInput():
                self.lifecycle.on_client_input(now, message)
            case m.Cancel():
                self.lifecycle.cancel(now, message.rid)
            case _:
                self._on_cluster_message(now, sender, message)

    def _on_cluster_message(self, now: float, sender: m.Peer, message: m.Message) -> None:
        """Dispatch what concerns workers, models or the whole server."""
        match message:
            case m.Register():
                self.membership.register(now, sender, message.weights_version)
            case m.ProcessExited():
                self._on_process_exited(now, message)
            case m.Heartbeat():
                self._on_heartbeat(now, sender, message)
            case m.StillComputing():
                self.failure_detector.on_still_computing(now, message.peer)
            case m.UnloadModel() | m.LoadModel() | m.ModelStatusQuery():
                self.model_loading.on_command(sender, message)
            case m.RollWeights():
                self.rollout.start(message.weights_version)
            case m.Drain():
                self.admission.is_draining = True
                self.lifecycle.close_inputs(now)
            case _:
                pass

    def _tick(self, now: float) -> None:
        self.failure_detector.tick(now)
        self._timeouts.tick(now)
        self.membership.check_ready()
        self.autoscaler.step(now)

    def _submit(self, now: float, frontend: m.Peer, submit: m.Submit) -> None:
        hit("conductor.submit")
        self.membership.register_frontend(frontend)
        if submit.rid in self.lifecycle.requests:
            self.retries.resubmit(now, submit)
        elif submit.model not in self.models:
            self._outbox.send(frontend, m.RequestRejected(submit.rid, 404, f"no model is called {submit.model!r}"))
        elif (rejected := self._rejection(now, submit)) is not None:
            self._outbox.send(frontend, rejected)
        else:
            self.model_loading.on_submit(submit.model)
            self.lifecycle.submit(now, frontend, self.models[submit.model], submit)

    def _rejection(self, now: float, submit: m.Submit) -> m.RequestRejected | None:
        return self.model_loading.rejection(now, submit) or self.admission.rejection(now, submit)

    def _admit(self, now: float) -> None:
        """Start queued requests that fit; report `Drained` once when nothing is left at shutdown."""
        hit("conductor.admit")
        while (rid := self.admission.admit_next()) is not None:
            self.lifecycle.start(now, rid)
        is_idle = not self.lifecycle.requests and not self.attempts
        if self.admission.is_draining and is_idle and not self._is_drained:
            self._is_drained = True
            self._outbox.send_launcher(m.Drained())

    def _on_heartbeat(self, now: float, sender: m.Peer, message: m.Heartbeat) -> None:
        if self.membership.is_alive(sender):
            is_draining = self.membership.workers[sender.name].draining_since is not None
            is_replaced = is_draining and bool(self.membership.serving([sender.worker]))
            if message.load is not None and not is_replaced:
                self.capacity.update_load(sender.worker, message.load)
            self.failure_detector.on_batch_running(now, sender, message.batch_running_s, message.batch_expected_s)

    def _drop_load(self, now: float, lost: WorkerLost) -> None:
        """Drop the load of a lost worker, unless another process of it serves: the load is that of the other one."""
        if not self.membership.serving([lost.peer.worker]):
            self.capacity.on_worker_lost(now, lost)

    def _on_process_exited(self, now: float, exited: m.ProcessExited) -> None:
        peer, membership = exited.peer, self.membership
        if membership.remove_frontend(peer):
            for rid in [rid for rid, request in self.lifecycle.requests.items() if request.frontend == peer]:
                self.lifecycle.cancel(now, rid)
        membership.mark_dead(peer)
        self.crash_loops.on_exited(now, exited)
        was_stopped = membership.confirm_stopped(peer)
        if not was_stopped:
            if not membership.is_alive(peer):
                self.pending_workers.on_exited(peer.worker)
            if self.rollout.on_exited(now, exited):
                self.lifecycle.place_waiting(now)
        lost = WorkerLost(peer, exited.suspects, cause=exited.cause)
        if membership.is_alive(peer):
            membership.remove(now, lost)
        elif not was_stopped:  # a worker that was stopped while it computed accuses no request
            self.retries.isolate_suspects(now, lost)
