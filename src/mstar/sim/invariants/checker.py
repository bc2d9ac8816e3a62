"""Invariants of a simulated deployment. Those that clients see (I1 to I4, I8) are checked in `history`.

| invariant | meaning |
|---|---|
| I5 | nothing is left when everything is idle |
| I6 | the queue is bounded: a tenant with its share of a full queue cannot queue more |
| I7 | messages and work of ended attempts have no effect; a non-idempotent call runs at most once |
| I9 | requests end in time, with an allowed status |
| I10 | failures are detected in time |
| I11 | a seed determines a run (checked by a test) |
| I12 | nothing grows without bound |
| I13 | no request kills worker after worker |
| I14 | scaling and rolling updates; see `scaling` |
| I15 | a conductor commands only its own workers |
| I16 | a client never receives outputs of a kind from two executions; see `execution` |
| I17 | workers know the deadlines of clients and serve urgent calls first; see `deadline` |
| I18 | tenants get their shares; see `fairness` |
| I19 | preempted walk runs resume in the order in which they started; see `preemption` |
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import Any

from mstar.conductor.admission import Admission
from mstar.conductor.attempts import Attempts
from mstar.conductor.core import ConductorCore
from mstar.conductor.membership import Membership
from mstar.conductor.request_lifecycle import RequestLifecycle
from mstar.conductor.requests import is_resubmitted
from mstar.conductor.scaling.autoscaler import Autoscaler
from mstar.conductor.scaling.pending_workers import PendingWorkers
from mstar.conductor.scaling.weights_versions import WeightsVersions
from mstar.sim.environment import Environment
from mstar.sim.history import REFUSED, Violation
from mstar.sim.invariants.focused import FocusedInvariants
from mstar.sim.invariants.scaling import ScalingInvariants
from mstar.sim.oracle import digest, expected_outcome
from mstar.sim.processes import AnyProcess, SimConductor, SimWorker, process_stats
from mstar.sim.scenario import DISTURBING_FAULTS, REQUEST_TIMEOUT_S, SimClient
from mstar.wire import messages as m
from mstar.worker.commands import Batch
from mstar.worker.core import CONDUCTOR_LEASE_S
from mstar.worker.early_messages import EarlyMessages
from mstar.worker.inflight_batches import InflightBatches
from mstar.worker.outbox import Outbox
from mstar.worker.request_table import RequestTable
from mstar.worker.scheduling.scheduler import Scheduler
from mstar.worker.state_table import StateTable
from mstar.worker.walk_data import WalkDataSender
from mstar.worker.walk_execution import WalkExecution

FAILURE_DETECTION_S = 1.6
"""Maximum seconds until a worker that does not respond is detected."""
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
MAX_POISON_KILLS = 3
"""Maximum workers that one request can kill under one conductor. A spread request runs on several at once."""
UNDETECTED_FAULTS = frozenset({"kill", "cut", "pause", "drop", "delay"})
"""Faults after which a conductor can miss the crash suspects of a worker."""
CHECKED_PARTS = (
    *(Admission, Attempts, Autoscaler, Membership, PendingWorkers, RequestLifecycle, WeightsVersions),
    *(EarlyMessages, InflightBatches, Outbox, RequestTable, Scheduler, StateTable, WalkDataSender, WalkExecution),
)
"""Parts of cores whose collections must be empty at the end."""
BOUNDED_FIELDS = frozenset(
    {
        *("models", "plans", "workers", "frontends", "dead_peers", "groups", "conductors"),
        *(
            "_models",
            "_plans",
            "_groups",
            "_known_workers",
            "_initial_workers",
            "_last_requested_at",
            "_recent_versions",
        ),
        *("_components", "_ended", "_cost", "_finished_attempts", "_generations"),
    }
)
"""Collections that can be non-empty at the end: their size is bounded by the deployment or by a constant."""


class InvariantChecker:
    """Checks the invariants of one simulation."""

    def __init__(self, simulation: Environment) -> None:
        self.simulation = simulation
        self._ended_attempts: dict[tuple[str, int], float] = {}
        self._deaths_by_request: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._crashes: Counter[str] = Counter()
        self.scaling = ScalingInvariants(simulation)
        self.focused = FocusedInvariants(simulation)
        self._clients = {client.rid: client for client in simulation.scenario.clients}

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
        match status:
            case "ok":
                return not client.hits_trap
            case "failed":
                if end.error_type == "Diverged":
                    return self.focused.executions.has_diverged(client.rid)
                error = {"raise": "TrapError", "huge": "NeverFits"}.get(client.request.trap)
                return client.hits_trap and end.error_type == error
            case "poison":
                return self._is_poison(client.rid)
            case "not_retryable":
                is_bound = client.model == "reach" or simulation.weights_version > 0
                return is_bound and bool(kinds & DISTURBING_FAULTS or "trap" in kinds)
            case "deadline":
                return client.timeout_s < REQUEST_TIMEOUT_S
            case "refused":
                if end.status == 429:
                    return "burst" in kinds or client.slo.ttft_s is not None
                return end.status == 503 and simulation.fault_injector.is_draining
            case _:
                return False

    def _is_poison(self, rid: str) -> bool:
        """Whether two workers died at the same call of it, one of them while it ran alone."""
        deaths = self._deaths_by_request[rid]
        return any(
            abs(calls - other) <= 1 and 1 in (count, count_then)
            for number, (calls, count) in enumerate(deaths)
            for other, count_then in deaths[:number]
        )

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
        if is_old and core.lifecycle.stale_messages == process.ignored_messages:
            raise Violation(f"I7 {process.peer} handled {message} of an ended attempt")
        process.ignored_messages = core.lifecycle.stale_messages
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

    def on_attempt_ended(self, end: m.ReleaseAttempt) -> None:
        """A conductor released an attempt."""
        self._ended_attempts.setdefault((end.rid, end.attempt), self.simulation.now)

    def on_batch_submitted(self, process: SimWorker, batch: Batch) -> None:
        """A worker submits a batch to its engine."""
        silent_s = self.simulation.now - process.conductor_seen_at
        if silent_s > CONDUCTOR_LEASE_S:
            raise Violation(f"I7 {process.peer} computes {silent_s:.2f} s after the last message of its conductor")
        self.focused.on_batch_submitted(process, batch)

    def on_batch_started(self, process: SimWorker) -> None:
        """A worker starts a batch."""
        simulation = self.simulation
        scenario = simulation.scenario
        is_undisturbed = not scenario.kinds & DISTURBING_FAULTS or simulation.now > scenario.end + RECOVERY_S
        for suspect in process.engine.suspects:
            ended_at = self._ended_attempts.get((suspect.rid, suspect.attempt), simulation.now)
            if is_undisturbed and simulation.now - ended_at > ZOMBIE_COMPUTE_S:
                raise Violation(
                    f"I7 {process.peer} computes for {suspect}, {simulation.now - ended_at:.2f} s after its end"
                )

    def on_attempt_released(self, process: SimWorker, released: m.AttemptReleased) -> None:
        """A worker confirms the release of an attempt."""
        for suspect in process.engine.suspects:
            if suspect.rid == released.rid and suspect.attempt == released.attempt:
                raise Violation(f"I7 {process.peer} sent {released} and still computes for it")

    def on_process_died(self, process: AnyProcess, suspects: list[m.Suspect]) -> None:
        """A process died while it computed these requests."""
        for suspect in suspects:
            self._deaths_by_request[suspect.rid].append((suspect.calls_completed, len(suspects)))
        if not isinstance(process, SimWorker):
            return
        clients = [self._clients[suspect.rid] for suspect in suspects]
        trapped = [client for client in clients if client.request.trap == "crash" and client.model != "guide"]
        if len(trapped) == 1 and not self.simulation.scenario.kinds & UNDETECTED_FAULTS:
            rid = trapped[0].rid
            self._crashes[rid] += 1
            conductor = self.simulation.peers[self.simulation.shards.conductor(trapped[0].model)]
            if self._crashes[rid] > MAX_POISON_KILLS * (conductor.incarnation + 1):
                raise Violation(f"I13 {rid} has killed {self._crashes[rid]} workers")

    def on_pause(self, process: AnyProcess, seconds: float) -> None:
        """A process is paused."""
        simulation = self.simulation
        if not isinstance(process, SimWorker) or seconds <= FAILURE_DETECTION_S or "cut" in simulation.scenario.kinds:
            return
        conductor = simulation.processes.get(simulation.shards.conductor(process.peer.name))
        if isinstance(conductor, SimConductor) and conductor.is_up and conductor.inbox is None:
            simulation.schedule_at(
                simulation.now + FAILURE_DETECTION_S, self._check_failure_detected, process, conductor, simulation.now
            )

    def _check_failure_detected(self, process: SimWorker, conductor: SimConductor, since: float) -> None:
        is_watched = not conductor.is_dead and conductor.inbox is None and not process.is_dead
        if is_watched and conductor.resumed_at < since and conductor.core.membership.is_alive(process.peer):
            raise Violation(f"I10 {process.peer} did not respond for {FAILURE_DETECTION_S} s and was not detected")

    def on_drained(self, process: SimConductor) -> None:
        """A conductor reports that it is drained."""
        if process.core.lifecycle.requests:
            raise Violation(f"I5 drained with {sorted(process.core.lifecycle.requests)} left")

    # ---------------------------------------------------------------- the end
    def is_quiet(self) -> bool:
        """Return whether no work is left anywhere."""
        return not self._remaining_work()

    def _remaining_work(self) -> list[str]:
        """Describe unfinished work and leftovers."""
        simulation = self.simulation
        history, processes = simulation.history, simulation.processes
        if len(history.requests) < len(simulation.scenario.clients):
            return ["not all clients have submitted"]
        left = [f"{rid} is open" for rid in history.pending_requests()]
        names = [name for name in simulation.peers if name not in simulation.inactive]
        left += [f"{name} is not up" for name in names if name not in processes or not processes[name].is_up]
        if left:
            return left
        if simulation.fault_injector.is_draining and not simulation.launcher.is_drained:
            left.append("the launcher did not receive Drained")
        for process in processes.values():
            stats = process_stats(process)
            if isinstance(process, SimConductor):
                membership, own = process.core.membership, simulation.shards.workers[process.peer.name]
                workers = [simulation.peers[name] for name in own if name in names]
                left += self.scaling.scaling_problems(process)
                left += [f"the conductor does not know {peer}" for peer in workers if not membership.is_alive(peer)]
                busy = [worker.peer for worker in membership.workers.values() if worker.running_walks]
                left += [f"the conductor counts running walks at {peer}" for peer in busy]
                del stats["workers"]
            elif isinstance(process, SimWorker):
                stats["in the engine"] = len(process.engine.states) + (process.engine.batch is not None)
            left += [f"{process.peer} has {count} {name}" for name, count in stats.items() if count]
            left += [f"{process.peer} is paused"] if process.inbox is not None else []
        if unacked := simulation.launcher.unacked_frames():
            left.append(f"the launcher has {unacked} unacked")
        return left

    def raise_not_quiet(self) -> None:
        """Raise: work is left long after the last fault."""
        left = self._remaining_work()
        number = "I9" if any("is open" in problem for problem in left) else "I5"
        raise Violation(f"{number} long after the last fault: {', '.join(left)}")

    def check_final_state(self) -> None:
        """Check what can only be checked when everything is idle."""
        repeated = [call for call, count in Counter(self.simulation.non_idempotent_calls).items() if count > 1]
        if repeated:
            raise Violation(f"I7 non-idempotent calls ran twice: {repeated}")
        for process in self.simulation.processes.values():
            parts = [process.core, *(part for part in vars(process.core).values() if isinstance(part, CHECKED_PARTS))]
            for part in parts:
                for name, field in vars(part).items():
                    if name not in BOUNDED_FIELDS and isinstance(field, dict | list | deque | set) and field:
                        raise Violation(f"I12 {process.peer} is left with {len(field)} in {type(part).__name__}.{name}")


def _has_share(core: ConductorCore, submit: m.Submit, limit: int) -> bool:
    """Whether the tenant of a request had at least an equal share of the queue before the request."""
    requests = [request for rid, request in core.lifecycle.requests.items() if core.admission.is_queued(rid)]
    queued = Counter(request.submit.tenant for request in requests if not is_resubmitted(request.submit))
    return (queued[submit.tenant] - 1) * len({request.submit.tenant for request in requests}) >= limit
