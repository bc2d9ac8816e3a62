"""Whether what happens in a simulated world may happen. What clients see is judged by `history`.

Its complaints are numbered: I5 nothing is left, I6 the queue is bounded, I7 what is over is over, and what must not be
done twice is not, I9 requests end in time and as they should, I10 deaths are noticed in time, I12 nothing grows without
bound, I13 no request kills worker after worker, I15 nobody conducts the workers of another. I1 to I4 and I8 are those
of a history, I14 is in `comings`; I11: a seed gives one run.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Any

from mstar.conductor.scaling.autoscaler import Autoscaler
from mstar.sim.history import REFUSED, Violation
from mstar.sim.oracle import digest, expected_outcome
from mstar.sim.processes import AnyProcess, SimConductor, SimWorker, process_stats
from mstar.sim.scaling_invariants import ScalingInvariants
from mstar.sim.scenario import DISTURBING_FAULTS, REQUEST_TIMEOUT_S, SimClient
from mstar.wire import messages as m
from mstar.worker.core import CONDUCTOR_LEASE_S
from mstar.worker.early_messages import EarlyMessages
from mstar.worker.inflight_batches import InflightBatches
from mstar.worker.outbox import Outbox
from mstar.worker.request_table import RequestTable
from mstar.worker.scheduling.scheduler import Scheduler
from mstar.worker.state_table import StateTable
from mstar.worker.walk_data import WalkDataSender
from mstar.worker.walk_execution import WalkExecution

if TYPE_CHECKING:
    from mstar.sim.simulation import Simulation

FAILURE_DETECTION_S = 1.6
"""A worker that does not answer is given up within so many seconds."""
ZOMBIE_COMPUTE_S = 0.5
"""A worker that can be reached computes nothing for an attempt that has been over for so long."""
MAX_OVERSHOOT_OUTPUTS = 4
"""How many emissions more than its window a client can get: those whose calls had begun."""
MAX_DEADLINE_DELAY_S = 0.4
"""How late a request may be told that its time is over when its conductor can do so."""
DELAYING_FAULTS = frozenset({"pause", "cut", "conductor", "drop", "delay"})
"""Trouble that keeps conductor and front end apart."""
MAX_POISON_KILLS = 3
"""How many workers one request can kill under one conductor. One that is spread dies in several places at once."""
UNDETECTED_FAULTS = frozenset({"kill", "cut", "pause", "drop", "delay"})
"""Trouble because of which a conductor may not know in time whom a worker died with."""
BOUNDED_FIELDS = frozenset(
    {
        *(
            "models",
            "plans",
            "workers",
            "frontends",
            "dead_peers",
            "groups",
            "inactive",
            "recent_versions",
            "conductors",
        ),
        *(
            "_plans",
            "_known_workers",
            "_initial_workers",
            "_last_requested_at",
            "_components",
            "_ended",
            "_cost",
            "_finished_attempts",
            "_generations",
        ),
    }
)
"""What cores may keep when there is nothing to do: it grows with the deployment, or has a bound of its own."""

CORE_PARTS = (
    Autoscaler,
    EarlyMessages,
    InflightBatches,
    Outbox,
    RequestTable,
    Scheduler,
    StateTable,
    WalkDataSender,
    WalkExecution,
)
"""Collaborators of cores whose containers are checked too."""


class InvariantChecker:
    """Watches one world."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._ended_attempts: dict[tuple[str, int], float] = {}
        self._deaths_by_request: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._crashes: Counter[str] = Counter()
        self.scaling = ScalingInvariants(simulation)
        self._clients = {client.rid: client for client in simulation.scenario.clients}

    # ---------------------------------------------------------------- clients
    def on_submit(self, client: SimClient) -> None:
        """A client asks."""
        streams, result, _ = expected_outcome(client)
        self.simulation.history.submit(self.simulation.now, client.rid, streams, result)

    def on_delivered(self, client: SimClient, kind: str) -> None:
        """A client was given an emission."""
        behind = client.delivered[kind] - client.consumed.get(kind, 0)
        if behind > self.simulation.scenario.worker_limits.max_undelivered_outputs + MAX_OVERSHOOT_OUTPUTS:
            raise Violation(f"I12 {client.rid} is given {behind} of {kind} that it did not take")

    def on_end(self, client: SimClient, end: m.RequestFinished | m.RequestRejected) -> None:
        """A client was told how its request ended."""
        world = self.simulation
        if isinstance(end, m.RequestRejected):
            status, result = REFUSED, b""
        else:
            status, result = end.status, digest(end.result.content)
        world.log("end", client.rid, status)
        world.history.end(world.now, client.rid, status, result)
        if (
            world.now > client.submit_at + client.timeout_s + MAX_DEADLINE_DELAY_S
            and not world.scenario.kinds & DELAYING_FAULTS
        ):
            raise Violation(f"I9 {client.rid} ended {status} after its time, {client.timeout_s:.2f} s, was over")
        if not self._is_allowed_end(client, end, status):
            raise Violation(f"I9 {client.rid} of {client.model} with trap {client.request.trap!r} ended with {end}")

    def _is_allowed_end(self, client: SimClient, end: Any, status: str) -> bool:
        world, kinds = self.simulation, self.simulation.scenario.kinds
        match status:
            case "ok":
                return not client.hits_trap
            case "failed":
                error = {"raise": "TrapError", "huge": "NeverFits"}.get(client.request.trap)
                return client.hits_trap and end.error_type == error
            case "poison":
                return self._is_poison(client.rid)
            case "not_retryable":
                is_bound = client.model == "reach" or world.weights_version > 0
                return is_bound and bool(kinds & DISTURBING_FAULTS or "trap" in kinds)
            case "deadline":
                return client.timeout_s < REQUEST_TIMEOUT_S
            case "refused":
                if end.status == 429:
                    return "burst" in kinds or client.slo.ttft_s is not None
                return end.status == 503 and world.fault_injector.is_draining
            case _:
                return False

    def _is_poison(self, rid: str) -> bool:
        """Whether it was computed at two deaths at the same place, the second time alone."""
        deaths = self._deaths_by_request[rid]
        return any(
            abs(calls - other) <= 1 and 1 in (count, count_then)
            for number, (calls, count) in enumerate(deaths)
            for other, count_then in deaths[:number]
        )

    # ---------------------------------------------------------------- processes
    def check_delivery(self, client: SimClient, emit: m.Emit, count: int) -> None:
        """A front end gives a client so much because of this."""
        if count and emit.attempt < client.attempt and not client.inputs:  # who cuts a walk wants all of those before
            raise Violation(f"I7 {client.rid} was given what attempt {emit.attempt} made, after {client.attempt}")
        client.attempt = max(client.attempt, emit.attempt)

    def on_conductor_step(self, life: SimConductor, message: m.Message, *, is_old: bool) -> None:
        """A conductor has dealt with a message; one that speaks of an attempt that is over, it has to ignore."""
        core = life.core
        if is_old and core.stale_messages == life.ignored_messages:
            raise Violation(f"I7 {life.peer} heeds {message}, which is over")
        life.ignored_messages = core.stale_messages
        if isinstance(message, m.Submit):
            if message.rid in core.requests:
                # Who was promised something may still be turned away while it waits.
                self.simulation.history.requests[message.rid].is_admitted = message.slo.ttft_s is None
                waiting = core.stats()["queue"] - sum(
                    one.submit.last_seen_attempt >= 0 for one in core.requests.values()
                )
                if message.last_seen_attempt < 0 and waiting > core.limits.max_queued_requests:
                    raise Violation(f"I6 {message.rid} is the {waiting}th that waits")
        elif isinstance(message, m.ProcessExited):
            for request in core.requests.values():
                if request.needs(message.peer):
                    raise Violation(f"I10 {request.rid} goes on with {message.peer}, which is gone")

    def on_attempt_ended(self, end: m.ReleaseAttempt) -> None:
        """A conductor has ended an attempt."""
        self._ended_attempts.setdefault((end.rid, end.attempt), self.simulation.now)

    def on_batch_submitted(self, life: SimWorker) -> None:
        """A worker gives its engine a batch."""
        unheard = self.simulation.now - life.conductor_seen_at
        if unheard > CONDUCTOR_LEASE_S:
            raise Violation(f"I7 {life.peer} goes on {unheard:.2f} s after it heard of its conductor")

    def on_batch_started(self, life: SimWorker) -> None:
        """A worker begins with a batch."""
        world = self.simulation
        is_calm = not world.scenario.kinds & DISTURBING_FAULTS or world.now > world.scenario.end + 4.0
        for suspect in life.engine.suspects:
            over = self._ended_attempts.get((suspect.rid, suspect.attempt), world.now)
            if is_calm and world.now - over > ZOMBIE_COMPUTE_S:
                raise Violation(f"I7 {life.peer} computes for {suspect}, {world.now - over:.2f} s after its end")

    def on_attempt_released(self, life: SimWorker, released: m.AttemptReleased) -> None:
        """A worker says that nothing of an attempt is left."""
        for suspect in life.engine.suspects:
            if suspect.rid == released.rid and suspect.attempt == released.attempt:
                raise Violation(f"I7 {life.peer} says {released} and still computes for it")

    def on_process_died(self, life: AnyProcess, suspects: list[m.Suspect]) -> None:
        """A process has died while it computed for these."""
        for suspect in suspects:
            self._deaths_by_request[suspect.rid].append((suspect.calls_completed, len(suspects)))
        if not isinstance(life, SimWorker):
            return
        clients = [self._clients[one.rid] for one in suspects]
        trapped = [client for client in clients if client.request.trap == "crash" and client.model != "guide"]
        if len(trapped) == 1 and not self.simulation.scenario.kinds & UNDETECTED_FAULTS:
            rid = trapped[0].rid
            self._crashes[rid] += 1
            conductor = self.simulation.peers[self.simulation.shards.conductor(trapped[0].model)]
            if self._crashes[rid] > MAX_POISON_KILLS * (conductor.incarnation + 1):
                raise Violation(f"I13 {rid} has killed {self._crashes[rid]} workers")

    def on_pause(self, life: AnyProcess, seconds: float) -> None:
        """A process stands still."""
        world = self.simulation
        if not isinstance(life, SimWorker) or seconds <= FAILURE_DETECTION_S or "cut" in world.scenario.kinds:
            return
        conductor = world.processes.get(world.shards.conductor(life.peer.name))
        if isinstance(conductor, SimConductor) and conductor.is_up and conductor.inbox is None:
            world.schedule_at(world.now + FAILURE_DETECTION_S, self._check_failure_detected, life, conductor, world.now)

    def _check_failure_detected(self, life: SimWorker, conductor: SimConductor, since: float) -> None:
        is_watched = not conductor.is_dead and conductor.inbox is None and not life.is_dead
        if is_watched and conductor.resumed_at < since and conductor.core.is_alive(life.peer):
            raise Violation(f"I10 {life.peer} has not answered for {FAILURE_DETECTION_S} s, and nobody has noticed")

    def on_drained(self, life: SimConductor) -> None:
        """The conductor says that nothing is left."""
        if life.core.requests:
            raise Violation(f"I5 drained with {sorted(life.core.requests)} left")

    # ---------------------------------------------------------------- the end
    def is_quiet(self) -> bool:
        """Whether nothing is left to do anywhere."""
        return not self._remaining_work()

    def _remaining_work(self) -> list[str]:
        """What is still going on, or was left."""
        world = self.simulation
        history, lives = world.history, world.processes
        if len(history.requests) < len(world.scenario.clients):
            return ["not everybody has asked"]
        left = [f"{rid} is open" for rid in history.pending_requests()]
        names = [name for name in world.peers if name not in world.inactive]
        left += [f"{name} is not up" for name in names if name not in lives or not lives[name].is_up]
        if left:
            return left
        if world.fault_injector.is_draining and not world.launcher.is_drained:
            left.append("the launcher waits for Drained")
        for life in lives.values():
            stock = process_stats(life)
            if isinstance(life, SimConductor):
                workers = [world.peers[name] for name in world.shards.workers[life.peer.name] if name in names]
                left += self.scaling.scaling_problems(life)
                left += [f"the conductor does not know {peer}" for peer in workers if not life.core.is_alive(peer)]
                left += [
                    f"the conductor has a load at {one.peer}" for one in life.core.workers.values() if one.running_walks
                ]
                del stock["workers"]
            elif isinstance(life, SimWorker):
                stock["in the engine"] = len(life.engine.states) + (life.engine.batch is not None)
            left += [f"{life.peer} has {count} {what}" for what, count in stock.items() if count]
            left += [f"{life.peer} is paused"] if life.inbox is not None else []
        left += (
            [f"the launcher has {world.launcher.unacked_frames()} unacked"] if world.launcher.unacked_frames() else []
        )
        return left

    def raise_not_quiet(self) -> None:
        """It should have been quiet long ago."""
        left = self._remaining_work()
        number = "I9" if any("is open" in what for what in left) else "I5"
        raise Violation(f"{number} long after trouble ended: {', '.join(left)}")

    def check_final_state(self) -> None:
        """All is quiet: look at what is known only now."""
        twice = [call for call, count in Counter(self.simulation.non_idempotent_calls).items() if count > 1]
        if twice:
            raise Violation(f"I7 a call that must not be repeated was: {twice}")
        for life in self.simulation.processes.values():
            parts = [life.core, *(part for part in vars(life.core).values() if isinstance(part, CORE_PARTS))]
            for part in parts:
                for name, held in vars(part).items():
                    if name not in BOUNDED_FIELDS and isinstance(held, dict | list | deque | set) and held:
                        raise Violation(f"I12 {life.peer} is left with {len(held)} in {type(part).__name__}.{name}")
