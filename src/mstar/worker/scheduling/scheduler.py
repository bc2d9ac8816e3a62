"""Batch scheduler (continuous batching): holds the ready calls and forms the next batch for the engine.

The scheduler decides which calls can run and how large a batch can be; a `SchedulingPolicy` chooses among them.

1. Backpressure: a call of a request whose client has too many unconsumed emissions does not run. It is paused: kept
   apart from the other calls until the client consumes more (`resume`), so that thousands of slow clients cost a choice
   nothing.
2. Preemption: a call of a walk run whose state the engine evicted does not run until memory is free; if nothing else
   can run, the oldest such walk run resumes.
3. While a batch runs, another one is queued behind it only if it is no longer than the running one and of another op:
   calls of the same op wait, because the running batch produces calls that can join them.
4. A batch that is cheap to enlarge waits up to `batch_fill_wait_s` for calls that other workers still compute, if
   every call in it has plenty of slack.
5. An op that gains nothing from batching runs one call at a time, so that the first call finishes sooner. Every
   `batch_probe_interval_batches` choices a batch of two is tried again.
6. A crash suspect runs alone (see `WalkRun.is_suspect`).
7. Calls of lookaheads are kept apart: one runs if there is nothing else to do (see `lookahead_calls`).
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from mstar.plan.runtime.frame import ReadyInstruction
from mstar.plan.tables import Call
from mstar.worker.requests import WalkRun
from mstar.worker.scheduling.cost_model import CostModel, ModelBatchKey
from mstar.worker.scheduling.fair_share import FairShare
from mstar.worker.scheduling.lookahead_calls import LookaheadCalls
from mstar.worker.scheduling.policy import ChosenBatch, LeastSlackFirst, SchedulingPolicy
from mstar.worker.scheduling.ready_call import ReadyCall
from mstar.worker.scheduling.tuning import DEFAULT_TUNING, SchedulerTuning


@dataclass(slots=True)
class BatchLimits:
    """Limits and policy of one scheduler."""

    max_batch_size: int = 64
    """Maximum calls in a batch."""
    max_undelivered_outputs: int = 64
    """Unconsumed emissions of one kind at which a request is paused."""
    policy: SchedulingPolicy | None = None
    """None for least slack first."""
    unbatched_keys: Mapping[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    """Batch keys of ops that run one call at a time, by model."""
    tuning: SchedulerTuning = DEFAULT_TUNING

    def is_unbatched(self, key: ModelBatchKey) -> bool:
        """Whether the op's implementation runs one call at a time."""
        return key[1] in self.unbatched_keys.get(key[0], ())


class Scheduler:
    """Ready calls by batch key, in order of arrival."""

    def __init__(self, limits: BatchLimits) -> None:
        self.cost_model = CostModel()
        self._limits = limits
        self._tuning = limits.tuning
        self._fair_share = FairShare()
        self._policy = limits.policy or LeastSlackFirst(self._fair_share, limits.tuning)
        self._by_key: dict[ModelBatchKey, list[ReadyCall]] = {}
        self._paused: dict[WalkRun, list[tuple[ModelBatchKey, ReadyCall]]] = {}
        """Calls of walk runs with backpressure. Those that no choice has looked at are in `_by_key` still."""
        self.lookaheads = LookaheadCalls(self._by_key, self.cost_model)
        self._added_count = self._requeued_count = 0
        self._choice_count = 0
        self.fill_wait_s: float | None = None
        """Seconds after which to choose again, because the last choice was to wait for a fuller batch; else None."""

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values())) + sum(map(len, self._paused.values())) + len(self.lookaheads)

    def __bool__(self) -> bool:
        return bool(self._by_key or self._paused or self.lookaheads.is_any)

    def __iter__(self) -> Iterator[ReadyCall]:
        paused = (call for calls in self._paused.values() for _, call in calls)
        return itertools.chain(itertools.chain.from_iterable(self._by_key.values()), paused, self.lookaheads)

    # ---------------------------------------------------------------- ready calls
    def add(self, now: float, ready: Iterable[ReadyInstruction]) -> None:
        """Add calls that became ready. Calls of walk runs that have ended are ignored."""
        by_key = self._by_key
        for frame, instruction in ready:
            walk_run: Any = frame.run.host
            if not walk_run.is_over:
                call: Call = instruction.detail
                key = (walk_run.start.model, call.key)
                if walk_run.lookahead is not None:
                    self.lookaheads.add(key, ReadyCall(walk_run, frame, instruction, now))
                    continue
                if (calls := by_key.get(key)) is None:
                    calls = by_key[key] = []
                self._added_count += 1
                calls.append(ReadyCall(walk_run, frame, instruction, now, self._added_count))

    def requeue(self, key: ModelBatchKey, call: ReadyCall) -> None:
        """Add a chunked call that has run in part, before the calls that arrived later."""
        if call.walk_run.lookahead is not None:
            self.lookaheads.requeue(key, call)
            return
        self._requeued_count += 1
        call.number = -self._requeued_count
        self._by_key.setdefault(key, []).insert(0, call)

    def resume(self, walk_run: WalkRun) -> None:
        """Return the paused calls of a walk run to their places, if its client has consumed enough."""
        if walk_run in self._paused and not self._is_backpressured(walk_run):
            _insert(self._by_key, self._paused.pop(walk_run))

    def drop(self, *walk_runs: WalkRun) -> None:
        """Remove the calls of walk runs."""
        for walk_run in walk_runs:
            self._paused.pop(walk_run, None)
        if self.lookaheads.is_any:
            self.lookaheads.take(*walk_runs)
        dropped = {*walk_runs}
        for key, calls in list(self._by_key.items()):
            self._set_calls(key, [call for call in calls if call.walk_run not in dropped])

    def learn(self, key: ModelBatchKey, calls: list[ReadyCall], seconds: float) -> None:
        """Record the cost of a finished batch."""
        self.cost_model.learn(key, len(calls), seconds)
        if calls[0].walk_run.lookahead is None:  # idle time is free
            self._fair_share.record_batch(calls, seconds)

    def _set_calls(self, key: ModelBatchKey, calls: list[ReadyCall]) -> None:
        if calls:
            self._by_key[key] = calls
        else:
            del self._by_key[key]

    # ---------------------------------------------------------------- the next batch
    def choose(self, now: float, running: ModelBatchKey | None, distributed_count: int = 0) -> ChosenBatch | None:
        """Choose and remove the next batch; None if it is better to wait.

        `running` is the batch key that the engine runs. `distributed_count` is the number of requests of this worker
        that also run at other workers: a batch can wait for their calls.
        """
        self.fill_wait_s = None
        runnable, preempted = self._runnable(running)
        if running is None and not runnable and preempted:
            for walk_run in [paused for paused in self._paused if paused.is_preempted]:  # the oldest can be paused
                calls = self._paused.pop(walk_run)
                _insert(self._by_key, calls)
                preempted += [(walk_run.number, *entry) for entry in calls]
            _, key, call = min(preempted, key=lambda item: item[0])
            call.walk_run.is_preempted = False
            runnable = {key: [call]}
        if not runnable:
            return None
        self._choice_count += 1
        key, chosen = self._policy.choose(now, runnable, self.cost_model, self._max_batch_size)
        typical_s = self.cost_model.typical_s
        if running is not None and (typical_s(key) or 0.0) > (typical_s(running) or 0.0):
            return None  # a more urgent call can arrive while the other batch runs
        can_grow = running is None and distributed_count > len(chosen)
        if can_grow and self._should_wait_to_fill(now, key, chosen):
            self.fill_wait_s = self._tuning.batch_fill_wait_s
            return None
        return key, self._dequeue(key, chosen)

    def _runnable(
        self, running: ModelBatchKey | None
    ) -> tuple[dict[ModelBatchKey, list[ReadyCall]], list[tuple[int, ModelBatchKey, ReadyCall]]]:
        """Calls that can run by batch key, and calls of preempted walk runs with the number of their walk run.

        Without the calls of the batch key that runs. They are not even looked at: this is called for every message
        while a batch runs, and there can be a thousand of them. Pauses those with backpressure among the others.
        """
        runnable: dict[ModelBatchKey, list[ReadyCall]] = {}
        preempted: list[tuple[int, ModelBatchKey, ReadyCall]] = []
        max_undelivered = self._limits.max_undelivered_outputs
        for key, calls in [*self._by_key.items()]:
            if key == running:
                continue
            free: list[ReadyCall] = []
            paused: set[int] = set()
            for call in calls:
                walk_run = call.walk_run
                if walk_run.is_preempted:
                    preempted.append((walk_run.number, key, call))
                elif walk_run.emission_counts and walk_run.is_backpressured(max_undelivered):
                    self._paused.setdefault(walk_run, []).append((key, call))
                    paused.add(id(call))
                else:
                    free.append(call)
            if paused:
                self._set_calls(key, [call for call in calls if id(call) not in paused])
            if free:
                runnable[key] = free
        return runnable, preempted

    def _is_backpressured(self, walk_run: WalkRun) -> bool:
        return bool(walk_run.emission_counts) and walk_run.is_backpressured(self._limits.max_undelivered_outputs)

    def _dequeue(self, key: ModelBatchKey, chosen: list[ReadyCall]) -> list[ReadyCall]:
        for call in [call for call in chosen if call.walk_run.isolate_at_call]:
            if call.walk_run.is_suspect(key[1]):  # alone: if it crashes the worker, no other request is suspected
                chosen = [call]
                break
        if len(chosen) == len(self._by_key[key]):
            del self._by_key[key]
        else:
            removed = set(map(id, chosen))
            self._by_key[key] = [call for call in self._by_key[key] if id(call) not in removed]
        return chosen

    def _should_wait_to_fill(self, now: float, key: ModelBatchKey, chosen: list[ReadyCall]) -> bool:
        """Whether waiting for more calls saves engine time and makes none of these late."""
        tuning, count = self._tuning, len(chosen)
        cost_s = self.cost_model.predict_s(key, count)
        if cost_s <= tuning.batch_fill_wait_s / 2:
            return False
        is_cheaper = 0 < self.cost_model.predict_s(key, 2 * count) < tuning.fill_max_cost_ratio * cost_s
        is_early = now - min(call.ready_since for call in chosen) < tuning.batch_fill_wait_s
        min_slack_s = tuning.fill_min_slack_factor * cost_s
        has_slack = all(not call.is_unstarted and min_slack_s < call.slack < inf for call in chosen)
        return is_cheaper and is_early and has_slack

    # ---------------------------------------------------------------- estimates
    def count_pending_batches(self) -> int:
        """Batches needed for all ready best-effort calls. Streams with deadlines are allowed to run ahead."""
        batches = 0
        for key, calls in self._by_key.items():
            best_effort = [
                call.walk_run for call in calls if not call.walk_run.has_deadlines and not call.walk_run.is_preempted
            ]
            runnable = sum(not self._is_backpressured(walk_run) for walk_run in best_effort)
            batches += -(-runnable // self._max_batch_size(key))
        return batches

    def estimate_s(self, key: ModelBatchKey, count: int) -> float:
        """Predicted seconds for `count` calls that are ready at the same time."""
        max_size = self._limits.max_batch_size
        if self._runs_separately(key):
            return count * self.cost_model.per_call_s(key)
        if count <= max_size:
            return self.cost_model.predict_s(key, count)
        return count / max_size * self.cost_model.predict_s(key, max_size)

    def least_slack(self) -> float:
        """Least slack of the waiting calls in seconds, as of the last choice; 0 if one is overdue.

        Without paused calls: their clients have output left.
        """
        if not self._by_key:
            return inf
        waiting = itertools.chain.from_iterable(self._by_key.values())
        slacks = (call.slack for call in waiting if call.walk_run.has_deadlines)
        return max(0.0, min(slacks, default=inf))

    def _max_batch_size(self, key: ModelBatchKey) -> int:
        tuning = self._tuning
        if self.cost_model.per_call_s(key) < tuning.cheap_call_s or not self._runs_separately(key):
            return self._limits.max_batch_size
        is_probe = self._choice_count % tuning.batch_probe_interval_batches == 0
        return 2 if is_probe and not self._limits.is_unbatched(key) else 1

    def _runs_separately(self, key: ModelBatchKey) -> bool:
        """Whether calls gain nothing from sharing a batch."""
        return self._limits.is_unbatched(key) or not self.cost_model.gains_from_batching(key)


def _insert(by_key: dict[ModelBatchKey, list[ReadyCall]], calls: Iterable[tuple[ModelBatchKey, ReadyCall]]) -> None:
    """Insert calls in their order of arrival."""
    for key, call in calls:
        insort(by_key.setdefault(key, []), call, key=lambda other: other.number)
