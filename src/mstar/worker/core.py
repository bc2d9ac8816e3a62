"""Sans-IO core of a worker: consumes events and returns actions. No IO, no clock, no threads, no tensors.

`WorkerCore` dispatches each event to the collaborator that owns the data:

    collaborator       module              owns
    RequestTable       request_table       requests, messages that arrived early
    WalkExecution      walk_execution      the progress of walk runs
    RouteStates        route_states        commands for states that routes hold
    WalkDataSender     walk_data           data and exported states for other workers
    Lookaheads         lookaheads          commits and drops of walks that run in idle time
    StateTable         state_table         references, owners and lifetimes of states
    Scheduler          scheduling          ready calls, and which of them run next
    InflightBatches    inflight_batches    batches in the engine
    Outbox             outbox              the actions of the current step

The worker holds a lease: without a message from its conductor for `CONDUCTOR_LEASE_S` it submits no batch, because the
conductor can have declared it dead and restarted its requests elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from mstar.failpoints import hit
from mstar.plan.tables import Plans
from mstar.wire import messages as m
from mstar.wire.active_clock import ActiveClock
from mstar.worker.batch_watchdog import RunningBatch
from mstar.worker.commands import Action, BatchFinished, Event, ExportFinished, MessageReceived, Tick
from mstar.worker.early_messages import EarlyMessages
from mstar.worker.inflight_batches import InflightBatch, InflightBatches
from mstar.worker.lookaheads import Lookaheads
from mstar.worker.outbox import Outbox
from mstar.worker.request_table import RequestTable
from mstar.worker.route_states import RouteStates
from mstar.worker.scheduling.load_estimator import LoadEstimator
from mstar.worker.scheduling.scheduler import BatchLimits, Scheduler
from mstar.worker.state_table import StateTable
from mstar.worker.stats.live_stats import WorkerSnapshot
from mstar.worker.stats.op_stats import OpStatsRecorder
from mstar.worker.walk_data import WalkDataSender
from mstar.worker.walk_execution import WalkExecution

HEARTBEAT_INTERVAL_S = 0.2
"""Seconds between two heartbeats to the conductor."""
CONDUCTOR_LEASE_S = 1.5
"""Seconds after the last message of the conductor in which the worker submits batches."""


class WorkerCore:
    """State of one worker. `components` are its loaded components, each as "model.component"."""

    def __init__(
        self,
        peer: m.Peer,
        conductor: m.Peer,
        plans: Mapping[str, Plans],
        components: tuple[str, ...],
        limits: BatchLimits,
    ) -> None:
        self.peer = peer
        self.weights_version = 0
        """Version of the loaded weights."""
        self.devices: Mapping[str, str] = {}
        """Torch device of each loaded component, as the placement calls it."""
        self.nondeterminism: Mapping[str, str] = {}
        """Why results of a component can depend on the batch, for each component where they can."""
        self.op_stats = OpStatsRecorder(plans)
        self.scheduler = Scheduler(limits)
        self.load_estimator = LoadEstimator(self.scheduler.estimate_s)
        self._components = components
        self._outbox = Outbox(conductor)
        self._states = StateTable(self._outbox)
        self._early_messages = EarlyMessages()
        self._requests = RequestTable(peer, plans, self._states, self._early_messages, self.op_stats)
        self._sender = WalkDataSender(self._outbox, self.op_stats)
        self._lookaheads = Lookaheads(self._requests, self._states, self.scheduler, self.op_stats, self._outbox)
        self._walks = WalkExecution(
            self._requests, self.scheduler, self.load_estimator, self._lookaheads, self._sender, self._outbox
        )
        self._route_states = RouteStates(peer, self._requests, self._states, self._sender, self._outbox)
        self._batches = InflightBatches(plans, self._outbox)
        self._unmeasured: dict[int, InflightBatch] = {}
        """Finished batches whose cost a device does not tell yet, by number."""
        self._clock = ActiveClock()
        self._active_now = 0.0
        """Time without pauses, for the age of batches. The lease expires in real time."""
        self._last_conductor_message_at = float("-inf")
        self._last_heartbeat_at = float("-inf")

    @property
    def conductor(self) -> m.Peer:
        """Current conductor, in its latest incarnation."""
        return self._outbox.conductor

    def step(self, now: float, event: Event) -> list[Action]:
        """Process one event; returns the actions to perform, in order."""
        self.op_stats.now = now
        self._active_now = self._clock.advance(now)
        match event:
            case MessageReceived():
                self._receive(now, event.sender, event.message)
            case BatchFinished():
                self._on_batch_finished(now, event)
            case ExportFinished():
                self._sender.finish_export(event)
            case Tick():
                self._tick(now)
            case _:
                assert_never(event)
        self._schedule(now)
        self._states.free_dropped()
        return self._outbox.take()

    def registration(self) -> m.Register:
        """What this worker has loaded."""
        return m.Register(self._components, self.weights_version, dict(self.devices), dict(self.nondeterminism))

    def stats(self) -> dict[str, int]:
        """Number of objects of each kind that the worker holds; all are 0 when it is idle."""
        return {
            "requests": len(self._requests),
            "waiting": len(self.scheduler),
            "running": len(self._batches),
            "states": len(self._states),
            "exports": len(self._sender),
            "early": len(self._early_messages),
        }

    def running_batch(self) -> RunningBatch | None:
        """The batch that the engine runs, as of the last step."""
        return self._batches.running(self._active_now)

    def snapshot(self) -> WorkerSnapshot:
        """Current calls and walk runs, for the live view."""
        return WorkerSnapshot(
            self.stats(), [*self.scheduler], [*self._batches.calls()], self.scheduler.least_slack(), self._requests
        )

    # ---------------------------------------------------------------- events
    def _receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        if sender.name == self.conductor.name:
            if sender.incarnation > self.conductor.incarnation:
                self._change_conductor(sender)
            self._last_conductor_message_at = now
        match message:
            case m.StartWalk():
                self._walks.start_walk(now, message)
            case m.DataBatch() | m.StateInput():
                self._walks.receive(now, message)
            case m.Credit():
                self._on_credit(message)
            case m.ReleaseAttempt():
                self._walks.release_attempt(message)
            case m.ForkState() | m.FreeStates() | m.SendState() | m.StateAhead():
                self._route_states.execute(message)
            case m.CommitLookahead() | m.DropLookahead():
                self._lookaheads.execute(now, message)
            case m.Register():
                self._outbox.send(sender, self.registration())
            case _:
                pass  # a heartbeat or an event about other peers: only its arrival matters

    def _on_credit(self, message: m.Credit) -> None:
        """Record what a client has consumed, and resume its request if it was paused."""
        request = self._requests.get(message.rid)
        if request is not None and request.attempt == message.attempt:
            request.on_credit(message.kind, message.consumed)
            if request.walk_run is not None:
                self.scheduler.resume(request.walk_run)

    def _change_conductor(self, conductor: m.Peer) -> None:
        """Follow a restarted conductor. It knows none of the requests here and starts them again."""
        self._outbox.conductor = conductor
        self._walks.drop_all()

    def _on_batch_finished(self, now: float, event: BatchFinished) -> None:
        hit("worker.on_batch_finished")
        batch = self._batches.finish(self._active_now, event.number)
        self.op_stats.on_batch(batch.key, batch.calls, event.results, event.seconds)
        if event.costs is None:
            self.scheduler.learn(batch.key, batch.calls, event.seconds)
        else:
            self._learn_device_costs(event.number, batch, event.costs)
        self._states.preempt_owners(event.evicted)
        if event.evicted:
            self._lookaheads.drop_evicted()
        for call, result in zip(batch.calls, event.results, strict=True):
            self._walks.on_result(now, batch.key, call, result)

    def _learn_device_costs(self, number: int, batch: InflightBatch, costs: Iterable[tuple[int, float]]) -> None:
        """Learn the costs of batches that a device has finished; those of others come with later reports."""
        self._unmeasured[number] = batch
        for finished, seconds in costs:
            measured = self._unmeasured.pop(finished)
            self.scheduler.learn(measured.key, measured.calls, seconds)

    def _tick(self, now: float) -> None:
        for rid, attempt, walk_index in self._requests.expire_early(now):
            if walk_index < 0:
                self._outbox.send_to_conductor(m.LookaheadLost(rid, attempt, walk_index))
                continue
            reason = "data arrived for a walk that was not started at this worker"
            self._outbox.send_to_conductor(m.RetryNeeded(rid, attempt, reason))
        if now - self._last_heartbeat_at >= HEARTBEAT_INTERVAL_S:
            self._last_heartbeat_at = now
            self.op_stats.live_stats.expire(now)
            load = self.load_estimator.estimate_load(self.scheduler.count_pending_batches())
            running_s, expected_s = self._batches.running_s(self._active_now), self._batches.running_expected_s()
            self._outbox.send_to_conductor(m.Heartbeat(running_s, load, expected_s))

    # ---------------------------------------------------------------- batches
    def _schedule(self, now: float) -> None:
        """Submit batches while the engine has capacity and the conductor's lease is valid."""
        hit("worker.schedule")
        self.scheduler.add(now, self._walks.take_ready())
        if not self.scheduler:
            return
        has_lease = now - self._last_conductor_message_at <= CONDUCTOR_LEASE_S
        while has_lease and self.scheduler and self._batches.has_capacity:
            chosen = self.scheduler.choose(now, self._batches.running_key, self._requests.distributed_count)
            if chosen is None:
                break
            key, calls = chosen
            expected_s = self.scheduler.cost_model.typical_s(key)
            self._batches.submit(self._active_now, key, calls, expected_s, self.scheduler.least_slack())
        if has_lease and self.scheduler.lookaheads.is_any and self._batches.running_key is None:
            self._schedule_lookahead(now)

    def _schedule_lookahead(self, now: float) -> None:
        """Submit one call of a lookahead, alone: the engine is idle."""
        chosen = self.scheduler.lookaheads.choose(now, self._requests.walk_runs())
        if chosen is not None:
            key, call, time_limit_s = chosen
            expected_s = self.scheduler.cost_model.typical_s(key)
            self._batches.submit(self._active_now, key, [call], expected_s, time_limit_s)
