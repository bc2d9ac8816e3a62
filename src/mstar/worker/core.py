"""A worker's core: told what happened, it says what to do. No IO, no clock, no threads, no tensors.

Here are messages, batches and states; how a walk begins, goes on and ends at this worker is in `visits`. What a request
does wrong ends that request only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, assert_never, cast

from mstar.engine.jobs import Job
from mstar.engine.jobs import JobDone as JobDone
from mstar.engine.jobs import JobFailed as JobFailed
from mstar.failpoints import hit
from mstar.plan.runtime.frame import ReadyInstruction
from mstar.plan.tables import Plans
from mstar.wire import messages as m
from mstar.worker import walk_execution
from mstar.worker.commands import (
    Action,
    Batch,
    BatchFinished,
    CreateState,
    Event,
    ExportedState,
    ExportFinished,
    Fork,
    Free,
    LoadState,
    MessageReceived,
    SendMessage,
    StateRef,
    Tick,
)
from mstar.worker.early_messages import EarlyMessages
from mstar.worker.requests import WalkRun, WorkerRequest
from mstar.worker.scheduling.cost_model import ModelBatchKey
from mstar.worker.scheduling.load_estimator import LoadEstimator
from mstar.worker.scheduling.policy import ReadyCall
from mstar.worker.scheduling.scheduler import BatchLimits, Scheduler
from mstar.worker.stats.op_stats import OpStatsRecorder

HEARTBEAT_INTERVAL_S = 0.2
"""Seconds between two signs of life."""
CONDUCTOR_LEASE_S = 1.5
"""Who has not heard of its conductor for so long starts nothing: it may have been given up, and its work to others."""
MAX_INFLIGHT_BATCHES = 2
"""How many batches the engine has at most: one runs, one waits."""


class WorkerCore:
    """The state of one worker. `components` are those it has loaded, each as "model.component"."""

    def __init__(
        self,
        peer: m.Peer,
        conductor: m.Peer,
        plans: Mapping[str, Plans],
        components: tuple[str, ...],
        limits: BatchLimits,
    ) -> None:
        self.peer = peer
        self.conductor = conductor
        self.weights_version = 0
        """Which edition of the weights it has loaded."""
        self.plans = plans
        self.requests: dict[str, WorkerRequest] = {}
        self.scheduler = Scheduler(limits)
        self.early_messages = EarlyMessages()
        self.load_estimator = LoadEstimator(self.scheduler.estimate_s)
        self.op_stats = OpStatsRecorder(plans)
        self.ready: list[ReadyInstruction] = []
        """Calls that became ready in this step."""
        self.actions: list[Action] = []
        """What is to be done after this step."""
        self.pending_exports: dict[int, walk_execution.PendingExport] = {}
        """States that are made ready to go, by ticket."""
        self.stale_messages = 0
        """How many messages spoke of what is over."""
        self._components = components
        self._dropped_states: list[int] = []
        self._owners: dict[int, WalkRun | None] = {}
        self._running_batches: dict[int, tuple[ModelBatchKey, list[ReadyCall], float]] = {}
        self._last_number = 0
        self._last_conductor_message_at = self._last_heartbeat_at = float("-inf")

    def step(self, now: float, event: Event) -> list[Action]:
        """Take note of an event; what to do now, in order."""
        self.op_stats.now = now
        match event:
            case MessageReceived():
                self._receive(now, event.sender, event.message)
            case BatchFinished():
                self._on_batch_finished(event)
            case ExportFinished():
                walk_execution.finish_export(self, event)
            case Tick():
                self._tick(now)
            case _:
                assert_never(event)
        self._schedule(now)
        out, self.actions = self.actions, []
        return out

    def stats(self) -> dict[str, int]:
        """What it holds, counted."""
        return {
            "requests": len(self.requests),
            "waiting": len(self.scheduler),
            "running": len(self._running_batches),
            "states": len(self._owners),
            "exports": len(self.pending_exports),
            "early": len(self.early_messages),
        }

    def running_calls(self) -> Iterator[ReadyCall]:
        """The calls that the engine has."""
        return (waiter for _, waiters, _ in self._running_batches.values() for waiter in waiters)

    # ---------------------------------------------------------------- messages
    def _receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        if sender.name == self.conductor.name:
            if sender.incarnation > self.conductor.incarnation:
                self._change_conductor(sender)
            self._last_conductor_message_at = now
        match message:
            case m.StartWalk():
                walk_execution.start_walk(self, message)
            case m.DataBatch() | m.StateInput():
                self._on_walk_data(now, message)
            case m.Credit():
                if (guest := self.requests.get(message.rid)) is not None and guest.attempt == message.attempt:
                    guest.consumed[message.kind] = max(message.consumed, guest.consumed.get(message.kind, 0))
            case m.ReleaseAttempt():
                walk_execution.release_attempt(self, message)
            case m.ForkState() | m.FreeStates() | m.SendState():
                self._on_state_command(message)
            case m.Register():
                self.actions.append(SendMessage(sender, m.Register(self._components, self.weights_version)))
            case _:
                pass  # beats and news of others: that they came is all there is to them

    def _change_conductor(self, conductor: m.Peer) -> None:
        """The old one is gone, and the new one knows nothing of what runs here: it will be started anew."""
        self.conductor = conductor
        for guest in list(self.requests.values()):
            walk_execution.drop_request(self, guest)

    def _on_walk_data(self, now: float, message: m.DataBatch | m.StateInput) -> None:
        guest = self.requests.get(message.rid)
        tour = None if guest is None else guest.walk_run
        told = (message.attempt, message.walk_index)
        now_at = (-1, -1) if guest is None else (guest.attempt, -1 if tour is None else tour.start.walk_index)
        if tour is not None and told == now_at:
            walk_execution.on_message(self, tour, message)
        elif told < now_at or not self.early_messages.add(now, message):
            self.stale_messages += 1

    def _on_state_command(self, message: m.ForkState | m.FreeStates | m.SendState) -> None:
        """The conductor speaks of states that a route holds."""
        hit("worker.on_state_command")
        guest = self.requests.get(message.rid)
        if guest is None or guest.attempt > message.attempt:
            self.stale_messages += 1
        elif isinstance(message, m.FreeStates):
            for number in message.states:
                guest.route_states.pop(number, None)
        elif message.state not in guest.route_states:
            self.send_to_conductor(
                m.RetryNeeded(message.rid, message.attempt, f"{self.peer} does not hold state {message.state}")
            )
        elif isinstance(message, m.ForkState):
            guest.route_states[message.new_state] = self.fork(None, guest.route_states[message.state])
        else:
            walk_execution.send_state(self, guest, message)

    def _tick(self, now: float) -> None:
        for rid, attempt, _ in self.early_messages.expire(now):
            self.send_to_conductor(m.RetryNeeded(rid, attempt, "something came for a walk that was never begun here"))
        if now - self._last_heartbeat_at >= HEARTBEAT_INTERVAL_S:
            self._last_heartbeat_at = now
            self.op_stats.live_stats.expire(now)
            since = min((since for _, _, since in self._running_batches.values()), default=now)
            self.send_to_conductor(
                m.Heartbeat(
                    now - since,
                    self.load_estimator.estimate_load(self.requests.values(), self.scheduler.count_pending_batches()),
                )
            )

    def send_to_conductor(self, message: m.Message) -> None:
        """Tell the conductor."""
        self.actions.append(SendMessage(self.conductor, message))

    # ---------------------------------------------------------------- batches
    def _schedule(self, now: float) -> None:
        """Queue batches, and free what nobody refers to any more."""
        hit("worker.schedule")
        if self.ready:
            self.scheduler.add(now, self.ready)
            self.ready.clear()
        while (
            self.scheduler
            and len(self._running_batches) < MAX_INFLIGHT_BATCHES
            and now - self._last_conductor_message_at <= CONDUCTOR_LEASE_S
        ):
            running = next((key for key, _, _ in self._running_batches.values()), None)
            chosen = self.scheduler.choose(now, running, self._remote_request_count)
            if chosen is None:
                break
            self._submit_batch(now, *chosen)
        if self._dropped_states:
            freed = tuple(self._dropped_states)
            self._dropped_states.clear()
            for number in freed:
                self._owners.pop(number, None)
            self.actions.append(Free(freed))

    @property
    def _remote_request_count(self) -> int:
        """How many of those that are here are at other workers too."""
        if all(len(plans.workers) == 1 for plans in self.plans.values()):
            return 0
        tours = (guest.walk_run for guest in self.requests.values() if guest.walk_run is not None)
        return sum(any(peer != self.peer for peer in tour.start.seats) for tour in tours)

    def _submit_batch(self, now: float, key: ModelBatchKey, chosen: list[ReadyCall]) -> None:
        hit("worker.submit_batch")
        for waiter in chosen:
            waiter.walk_run.in_flight += 1
            if waiter.job is None:
                waiter.job = Job(waiter.frame.arguments(waiter.instruction))
        jobs = [cast("Job", waiter.job) for waiter in chosen]
        tours = {waiter.walk_run.number: waiter.walk_run for waiter in chosen}.values()
        suspects = [m.Suspect(tour.request.rid, tour.request.attempt, tour.completed_calls[key[1]]) for tour in tours]
        number = self.next_number()
        self._running_batches[number] = (key, chosen, now)
        name, cost = self.plans[key[0]].keys[key[1]], self.scheduler.cost_model.typical_s(key)
        self.actions.append(Batch(number, key[0], name, jobs, suspects, cost, self.scheduler.least_slack()))

    def _on_batch_finished(self, event: BatchFinished) -> None:
        """A batch is back: each of its requests goes on by itself."""
        hit("worker.on_batch_finished")
        key, waiters, _ = self._running_batches.pop(event.number)
        self.op_stats.on_batch(key, waiters, event.results, event.seconds)
        self.scheduler.learn(key, waiters, event.seconds)
        for number in event.evicted:
            if (owner := self._owners.get(number)) is not None:
                owner.is_preempted = True
        for waiter, result in zip(waiters, event.results, strict=True):
            tour = waiter.walk_run
            tour.in_flight -= 1
            if tour.is_over:
                walk_execution.confirm_release(self, tour)
            elif isinstance(result, JobDone):
                waiter.job = None
                tour.completed_calls[key[1]] += 1
                self.load_estimator.on_call(tour, key[1])
                walk_execution.complete(self, waiter, result.values)
            elif isinstance(result, JobFailed):
                walk_execution.fail(self, tour, result.error)
            else:
                self.scheduler.requeue(key, waiter)

    def resume_preempted(self) -> None:
        """Somebody is done, and their memory free: the first of those that had to make room may go on."""
        tours = [guest.walk_run for guest in self.requests.values() if guest.walk_run is not None]
        parked = [tour for tour in tours if tour.is_preempted and not tour.is_over]
        if parked:
            min(parked, key=lambda tour: tour.number).is_preempted = False

    # ---------------------------------------------------------------- states
    def next_number(self) -> int:
        """A number that was not used before."""
        self._last_number += 1
        return self._last_number

    def _new_ref(self, owner: WalkRun | None) -> StateRef:
        ref = StateRef(self.next_number(), self._dropped_states)
        self._owners[ref.number] = owner
        return ref

    def new_state(self, walk_run: WalkRun, component: str, kind: str) -> StateRef:
        """A fresh state."""
        ref = self._new_ref(walk_run)
        self.actions.append(CreateState(ref.number, walk_run.start.model, component, kind, walk_run.start.tenant))
        return ref

    def fork(self, walk_run: WalkRun | None, state: StateRef) -> StateRef:
        """A copy of a state."""
        ref = self._new_ref(walk_run)
        self.actions.append(Fork(state.number, ref.number))
        return ref

    def load_state(self, walk_run: WalkRun, exported: Any) -> StateRef:
        """A state that another worker sent."""
        ref = self._new_ref(walk_run)
        self.actions.append(LoadState(ref.number, walk_run.start.model, cast("ExportedState", exported)))
        return ref
