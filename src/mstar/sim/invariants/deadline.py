"""Invariant I17: workers know when clients run out of output, and no urgent call waits for one that has more time.

1. Deadlines. The checker plays the outputs of each client. What a worker believes about a client must be the time at
   which that client ran or will run out after one of its outputs. It can be later by the time that messages take. The
   first output is due at the TTFT target, counted from the submission: time in the queue included.
2. Order. When a batch is submitted, no urgent call of the same op is left out while a call with more slack is in the
   batch. This holds until enough calls are overdue that the policy switches to throughput.

Scenarios have no faults. The slack is computed here again, with the cost model of the worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from mstar.sim.environment import Environment
from mstar.sim.history import Violation
from mstar.sim.processes import SimWorker
from mstar.wire import messages as m
from mstar.wire.slo import PlaybackClock, duration_of, has_deadline
from mstar.worker.commands import Batch
from mstar.worker.requests import WalkRun
from mstar.worker.scheduling.ready_call import ReadyCall
from mstar.worker.scheduling.tuning import DEFAULT_TUNING

MAX_TRANSIT_S = 0.02
"""Maximum seconds by which a deadline is later at a worker than at the client, over all messages on its way."""
ROUNDING_S = 1e-6


class DeadlineInvariants:
    """Checks I17 in one simulation."""

    def __init__(self, simulation: Environment) -> None:
        self._simulation = simulation
        self._clients = {client.rid: client for client in simulation.scenario.clients}
        self._clocks: dict[tuple[str, str], PlaybackClock] = {}
        """Playback of each client, by request and kind."""
        self._dues: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        """When the client runs out after each of its outputs."""

    def on_emit(self, emit: m.Emit) -> None:
        """A worker sends an output."""
        slo, key = self._clients[emit.rid].slo, (emit.rid, emit.kind)
        if has_deadline(emit.kind, slo):
            clock = self._clocks.setdefault(key, PlaybackClock(inf))
            clock.on_emission(self._simulation.now, duration_of(emit.kind, emit.value.content, dict(emit.clock), slo))
            self._dues[key].append(clock.due)

    def on_batch_submitted(self, process: SimWorker, batch: Batch) -> None:
        """A worker submits a batch to its engine."""
        snapshot = process.core.snapshot()
        for request in snapshot.requests:
            if request.walk_run is not None and not request.walk_run.is_over:
                self._check_deadlines(process, request.walk_run)
        jobs = {id(job) for job in batch.jobs}
        chosen = [call for call in snapshot.running_calls if id(call.job) in jobs]
        slacks = {id(call): self._slack(process, call) for call in (*snapshot.running_calls, *snapshot.waiting_calls)}
        # Calls of other batches count too: they can have been overdue when this batch was chosen in the same step.
        if sum(slack <= 0 for slack in slacks.values()) <= DEFAULT_TUNING.overload_min_overdue_calls:
            self._check_order(process, chosen, snapshot.waiting_calls, slacks)

    def _check_deadlines(self, process: SimWorker, run: WalkRun) -> None:
        rid, slo = run.request.rid, run.start.slo
        first_due = self._simulation.history.requests[rid].submitted_at + slo.ttft_target_s
        if not _is_near(run.first_due, [first_due]):
            raise Violation(
                f"I17 {process.peer} expects the first output of {rid} at {run.first_due:.3f}, due at {first_due:.3f}"
            )
        for kind, clock in run.playback_clocks.items():
            if not _is_near(clock.due, self._dues[rid, kind]):
                dues = ", ".join(f"{due:.3f}" for due in self._dues[rid, kind][-3:])
                raise Violation(
                    f"I17 {process.peer} expects that {rid} runs out of {kind} at {clock.due:.3f}, not at {dues}"
                )

    @staticmethod
    def _check_order(
        process: SimWorker, chosen: list[ReadyCall], waiting: Sequence[ReadyCall], slacks: Mapping[int, float]
    ) -> None:
        key = _key(chosen[0])
        urgent_s = process.core.scheduler.cost_model.predict_s(key, len(chosen))
        most = max(chosen, key=lambda call: slacks[id(call)])
        for call in waiting:
            slack = slacks[id(call)]
            if _key(call) == key and 0 < slack <= urgent_s and slack + ROUNDING_S < slacks[id(most)]:
                rids = call.walk_run.request.rid, most.walk_run.request.rid
                raise Violation(
                    f"I17 {process.peer} lets {rids[0]} wait with {slack:.3f} s of slack, "
                    f"and runs {rids[1]} with {slacks[id(most)]:.3f} s"
                )

    def _slack(self, process: SimWorker, call: ReadyCall) -> float:
        """Seconds that a call can wait without making an output late."""
        run, detail, slack = call.walk_run, call.instruction.detail, inf
        for path in detail.paths:
            due, _ = run.next_due(path.kind)
            if due < inf:
                work_s = process.core.scheduler.cost_model.time_to_output_s(run.start.model, detail, path, call.frame)
                slack = min(slack, due - self._simulation.now - work_s - DEFAULT_TUNING.delivery_margin_s)
        return slack


def _key(call: ReadyCall) -> tuple[str, int]:
    return call.walk_run.start.model, call.instruction.detail.key


def _is_near(due: float, known: Iterable[float]) -> bool:
    """Whether a deadline is one of the known ones, or later by the time of messages."""
    return any(-ROUNDING_S <= due - each <= MAX_TRANSIT_S for each in known)
