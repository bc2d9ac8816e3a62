"""Invariants of a simulated deployment. Those that clients see (I1 to I4, I8) are checked in `history`.

| invariant | meaning |
|---|---|
| I5 | nothing is left when everything is idle; see `final_state` |
| I6 | the queue is bounded: a tenant with its share of a full queue cannot queue more |
| I7 | messages and work of ended attempts have no effect; a non-idempotent walk starts once, and its calls run once |
| I9 | requests end in time, with an allowed status |
| I10 | failures are detected in time; see `death` |
| I11 | a seed determines a run (checked by a test) |
| I12 | nothing grows without bound; see `final_state` |
| I13 | no request kills worker after worker; see `death` |
| I14 | scaling and rolling updates; see `scaling` |
| I15 | a conductor commands only its own workers |
| I16 | a client never receives outputs of a kind from two executions; see `execution` |
| I17 | workers know the deadlines of clients and serve urgent calls first; see `deadline` |
| I18 | tenants get their shares; see `fairness` |
| I19 | preempted walk runs resume in the order in which they started; see `preemption` |
| I20 | only a process that was paused for longer than its limit is killed; see `death` |
| I21 | only a request that crashes workers is poison; see `death` |
| I22 | no new request waits for a worker that drains or starts while others can serve it; see `waiting` |
| I23 | no walk starts on a worker that does not respond while another one could run it; see `placement` |
| I24 | a call of a lookahead runs alone, on an idle engine, and only if no other call could run; see `lookahead` |
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from mstar.conductor.core import ConductorCore
from mstar.conductor.requests import is_resubmitted
from mstar.sim.environment import Environment
from mstar.sim.history import REFUSED, Violation
from mstar.sim.invariants.death import DeathInvariants
from mstar.sim.invariants.final_state import FinalState
from mstar.sim.invariants.focused import FocusedInvariants
from mstar.sim.invariants.lookahead import check_is_idle
from mstar.sim.invariants.placement import check_responsive
from mstar.sim.invariants.scaling import ScalingInvariants
from mstar.sim.invariants.waiting import WaitingInvariants
from mstar.sim.oracle import digest, expected_outcome
from mstar.sim.processes import SimConductor, SimWorker
from mstar.sim.scenario import DISTURBING_FAULTS, REQUEST_TIMEOUT_S, SimClient
from mstar.wire import messages as m
from mstar.worker.commands import Batch
from mstar.worker.core import CONDUCTOR_LEASE_S

ZOMBIE_COMPUTE_S = 0.5
"""Maximum seconds a reachable worker computes for an attempt that has ended."""
MAX_OVERSHOOT_OUTPUTS = 4
"""Maximum outputs beyond `max_undelivered_outputs`: those whose calls had started."""
MAX_DEADLINE_DELAY_S = 0.4
"""Maximum seconds between the deadline of a request and its end."""
RECOVERY_S = 4.0
"""Seconds after the last fault until deployments are expected to have recovered."""
DELAYING_FAULTS = frozenset({"pause", "cut", "conductor", "drop", "delay"})
"""Faults that can delay messages between conductor and front end."""


class InvariantChecker:
    """Checks the invariants of one simulation."""

    def __init__(self, simulation: Environment) -> None:
        self.simulation = simulation
        self._ended_attempts: dict[tuple[str, int], float] = {}
        self._non_idempotent_attempts: dict[tuple[str, int], int] = {}
        """By request and number of a non-idempotent walk, the only attempt that can start it."""
        self.deaths = DeathInvariants(simulation)
        self.scaling = ScalingInvariants(simulation)
        self.final_state = FinalState(simulation, self.scaling)
        self.focused = FocusedInvariants(simulation)
        self.waiting = WaitingInvariants(simulation)

    # ---------------------------------------------------------------- clients
    def on_submit(self, client: SimClient) -> None:
        """A client submits its request."""
        streams, result, _ = expected_outcome(client)
        is_known = not client.request.is_nondeterministic
        self.simulation.history.submit(self.simulation.now, client.rid, streams if is_known else None, result)

    def on_delivered(self, client: SimClient, kind: str) -> None:
        """A client received an output."""
        behind = client.delivered[kind] - client.consumed.get(kind, 0)
        if behind > self.simulation.scenario.worker_limits.max_undelivered_outputs + MAX_OVERSHOOT_OUTPUTS:
            raise Violation(f"I12 {client.rid} has {behind} undelivered outputs of {kind}")

    def on_end(self, client: SimClient, end: m.RequestFinished | m.RequestRejected) -> None:
        """A client received the final status."""
        simulation = self.simulation
        if isinstance(end, m.RequestRejected):
            status, result = REFUSED, b""
        else:
            status, result = end.status, digest(end.result.content)
        simulation.log("end", client.rid, status)
        simulation.history.end(simulation.now, client.rid, status, result)
        if status == "ok":
            assert isinstance(end, m.RequestFinished)
            self.focused.executions.on_ok(client.rid, end.totals)
        if (
            simulation.now > client.submit_at + client.timeout_s + MAX_DEADLINE_DELAY_S
            and not simulation.scenario.kinds & DELAYING_FAULTS
        ):
            raise Violation(f"I9 {client.rid} ended {status} after its timeout of {client.timeout_s:.2f} s")
        if not self._is_allowed_end(client, end, status):
            raise Violation(f"I9 {client.rid} of {client.model} with trap {client.request.trap!r} ended with {end}")

    def _is_allowed_end(self, client: SimClient, end: Any, status: str) -> bool:
        simulation, kinds = self.simulation, self.simulation.scenario.kinds
        if simulation.scenario.has_long_pauses:
            return status == "ok"
        match status:
            case "ok":
                return not client.hits_trap
            case "failed":
                if end.error_type == "Diverged":
                    return self.focused.executions.has_diverged(client.rid)
                error = {"raise": "TrapError", "huge": "NeverFits"}.get(client.request.trap)
                return client.hits_trap and end.error_type == error
            case "poison":
                return self.deaths.is_poison(client)
            case "not_retryable":
                is_bound = client.model == "reach" or simulation.weights_version > 0
                return is_bound and bool(kinds & DISTURBING_FAULTS or "trap" in kinds)
            case "deadline":
                return client.timeout_s < REQUEST_TIMEOUT_S
            case "refused":
                if end.status == 429:
                    return "burst" in kinds or client.slo.ttft_s is not None
                is_crash_loop = end.retry_after_s > 0 and simulation.worker_processes.had_crash_loop(client.model)
                return end.status == 503 and (simulation.fault_injector.is_draining or is_crash_loop)
            case _:
                return False

    # ---------------------------------------------------------------- processes
    def check_delivery(self, client: SimClient, emit: m.Emit, count: int) -> None:
        """A front end delivers `count` outputs because of a message."""
        # After an interruption, outputs of earlier walks are still delivered.
        if count and emit.attempt < client.attempt and not client.inputs:
            raise Violation(f"I7 {client.rid} received output of attempt {emit.attempt} after {client.attempt}")
        client.attempt = max(client.attempt, emit.attempt)

    def on_conductor_step(self, process: SimConductor, message: m.Message, *, is_old: bool) -> None:
        """A conductor handled a message; it must ignore one of an ended attempt (`is_old`)."""
        core = process.core
        if is_old and core.walk_reports.stale_messages == process.ignored_messages:
            raise Violation(f"I7 {process.peer} handled {message} of an ended attempt")
        process.ignored_messages = core.walk_reports.stale_messages
        if isinstance(message, m.Submit):
            if message.rid in core.lifecycle.requests:
                # A queued request with a TTFT target can still be rejected.
                self.simulation.history.requests[message.rid].is_admitted = message.slo.ttft_s is None
                resubmitted = sum(is_resubmitted(request.submit) for request in core.lifecycle.requests.values())
                waiting, limit = core.admission.queue_length - resubmitted, core.limits.max_queued_requests
                if not is_resubmitted(message) and waiting > limit and _has_share(core, message, limit):
                    raise Violation(f"I6 {message.rid} is number {waiting} in the queue")
        elif isinstance(message, m.ProcessExited):
            for request in core.lifecycle.requests.values():
                if request.needs(message.peer):
                    raise Violation(f"I10 {request.rid} still uses {message.peer}, which exited")

    def on_start_walk(self, process: SimConductor, start: m.StartWalk) -> None:
        """A conductor starts a walk; a non-idempotent one only in one attempt, because a worker can have begun it."""
        self.scaling.on_start_walk(process, start)
        check_responsive(process, start)
        if start.walk_name in self.simulation.planned_models[start.model].non_idempotent_walks:
            attempt = self._non_idempotent_attempts.setdefault((start.rid, start.walk_index), start.attempt)
            if start.attempt != attempt:
                raise Violation(f"I7 {start.rid} starts {start.walk_name} in attempts {attempt} and {start.attempt}")

    def on_attempt_ended(self, end: m.ReleaseAttempt) -> None:
        """A conductor released an attempt."""
        self._ended_attempts.setdefault((end.rid, end.attempt), self.simulation.now)

    def on_batch_submitted(self, process: SimWorker, batch: Batch) -> None:
        """A worker submits a batch to its engine."""
        silent_s = self.simulation.now - process.conductor_seen_at
        if silent_s > CONDUCTOR_LEASE_S:
            raise Violation(f"I7 {process.peer} computes {silent_s:.2f} s after the last message of its conductor")
        self.focused.on_batch_submitted(process, batch)
        if "lookahead" in self.simulation.scenario.kinds:
            check_is_idle(process, batch)

    def on_batch_started(self, process: SimWorker) -> None:
        """A worker starts a batch."""
        simulation = self.simulation
        scenario = simulation.scenario
        is_undisturbed = not scenario.kinds & DISTURBING_FAULTS or simulation.now > scenario.end + RECOVERY_S
        for suspect in process.engine.suspects:
            ended_at = self._ended_attempts.get((suspect.rid, suspect.attempt), simulation.now)
            ended_at = max(ended_at, process.resumed_at)  # it could not receive ReleaseAttempt before
            if is_undisturbed and simulation.now - ended_at > ZOMBIE_COMPUTE_S:
                raise Violation(
                    f"I7 {process.peer} computes for {suspect}, {simulation.now - ended_at:.2f} s after its end"
                )

    def on_attempt_released(self, process: SimWorker, released: m.AttemptReleased) -> None:
        """A worker confirms the release of an attempt."""
        for suspect in process.engine.suspects:
            if suspect.rid == released.rid and suspect.attempt == released.attempt:
                raise Violation(f"I7 {process.peer} sent {released} and still computes for it")

    def on_drained(self, process: SimConductor) -> None:
        """A conductor reports that it is drained."""
        if process.core.lifecycle.requests:
            raise Violation(f"I5 drained with {sorted(process.core.lifecycle.requests)} left")


def _has_share(core: ConductorCore, submit: m.Submit, limit: int) -> bool:
    """Whether the tenant of a request had at least an equal share of the queue before the request."""
    requests = [request for rid, request in core.lifecycle.requests.items() if core.admission.is_queued(rid)]
    queued = Counter(request.submit.tenant for request in requests if not is_resubmitted(request.submit))
    return (queued[submit.tenant] - 1) * len({request.submit.tenant for request in requests}) >= limit
