"""Calls that are ready, and which of them may run now. Which of those do is the business of an `order`.

A call may not run while its client does not take what it was sent, or while its state had to make room. While a batch
runs, only one that costs no more may be queued behind it, and never one of the same op: its calls had better wait and
be joined by those that the running one leads to. While everybody who could run has plenty to play, a batch that would
cost hardly more with twice as many waits a moment for those that other workers still have.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import cast

from mstar.plan.runtime.frame import ReadyInstruction
from mstar.plan.tables import Call
from mstar.worker.requests import WalkRun
from mstar.worker.scheduling.cost_model import CostModel, ModelBatchKey
from mstar.worker.scheduling.fair_share import FairShare
from mstar.worker.scheduling.policy import ChosenBatch, LeastSlackFirst, ReadyCall, SchedulingPolicy

BATCH_FILL_WAIT_S = 0.03
"""For so many seconds a call waits for others that may share its batch, if that takes at least half as long."""
CHEAP_CALL_S = 0.002
"""Calls that take fewer seconds are run together whether they gain by it or not: so is what has to be done for each."""
BATCH_PROBE_INTERVAL_BATCHES = 64
"""Once in so many batches two calls are tried together, of an op that gained nothing by that before."""
FILL_MIN_SLACK_FACTOR, FILL_MAX_COST_RATIO = 10.0, 1.5
"""A batch waits if everybody in it can wait for so many times what it takes, and one twice as large takes less than so
many times as long."""


@dataclass(slots=True)
class BatchLimits:
    """How many calls share a batch at most, how many emissions a client may be behind, and the rule that chooses."""

    max_batch_size: int = 64
    max_undelivered_outputs: int = 64
    policy: SchedulingPolicy | None = None
    """None: by slack."""
    unbatched_keys: Mapping[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    """By model, the batch keys of ops that run each call by itself."""


class Scheduler:
    """The calls that are ready, by batch key, in the order in which they came."""

    def __init__(self, limits: BatchLimits) -> None:
        self.cost_model = CostModel()
        self._limits = limits
        self._fair_share = FairShare()
        self._policy = limits.policy or LeastSlackFirst(self._fair_share)
        self._by_key: dict[ModelBatchKey, list[ReadyCall]] = {}
        self._choice_count = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __iter__(self) -> Iterator[ReadyCall]:
        return itertools.chain.from_iterable(self._by_key.values())

    def add(self, now: float, ready: Iterable[ReadyInstruction]) -> None:
        """Calls have become ready."""
        for frame, instruction in ready:
            tour, call = cast("WalkRun", frame.run.host), instruction.detail
            assert isinstance(call, Call)
            if not tour.is_over:
                waiters = self._by_key.setdefault((tour.start.model, call.key), [])
                waiters.append(ReadyCall(tour, frame, instruction, now))

    def requeue(self, key: ModelBatchKey, ready_call: ReadyCall) -> None:
        """A call has not been run to its end: it goes on before those that came later."""
        self._by_key.setdefault(key, []).insert(0, ready_call)

    def drop(self, walk_run: WalkRun) -> None:
        """Forget the calls of a tour that is over."""
        for key, waiters in list(self._by_key.items()):
            left = [waiter for waiter in waiters if waiter.walk_run is not walk_run]
            if left:
                self._by_key[key] = left
            else:
                del self._by_key[key]

    def learn(self, key: ModelBatchKey, calls: list[ReadyCall], seconds: float) -> None:
        """A batch has taken so long."""
        self.cost_model.learn(key, len(calls), seconds)
        self._fair_share.record_batch(calls, seconds)

    def choose(self, now: float, running: ModelBatchKey | None, remote_requests: int = 0) -> ChosenBatch | None:
        """The next batch, to be queued behind the one that is running if there is one; None if it is better to wait.

        `elsewhere` is how many of those that are here are at other workers too.
        """
        able, parked = self._runnable()
        if running is not None:
            able = {key: found for key, found in able.items() if key != running}
        elif not able and parked:
            _, key, waiter = min(parked, key=lambda one: one[0])
            waiter.walk_run.is_preempted = False
            able = {key: [waiter]}
        if not able:
            return None
        self._choice_count += 1
        key, chosen = self._policy.choose(now, able, self.cost_model, self._max_batch_size)
        if running is not None and self._typical_s(key) > self._typical_s(running):
            return None  # it takes long: who comes while the other runs may be in more of a hurry
        if running is None and remote_requests > len(chosen) and self._should_wait_to_fill(now, key, chosen):
            return None
        return key, self._dequeue(key, chosen)

    def _runnable(self) -> tuple[dict[ModelBatchKey, list[ReadyCall]], list[tuple[int, ModelBatchKey, ReadyCall]]]:
        """The calls that may run, and those of tours that had to make room."""
        able: dict[ModelBatchKey, list[ReadyCall]] = {}
        parked: list[tuple[int, ModelBatchKey, ReadyCall]] = []
        for key, waiters in self._by_key.items():
            free: list[ReadyCall] = []
            for waiter in waiters:
                tour = waiter.walk_run
                if tour.is_preempted:
                    parked.append((tour.number, key, waiter))
                elif not tour.emission_counts or not tour.is_backpressured(self._limits.max_undelivered_outputs):
                    free.append(waiter)
            if free:
                able[key] = free
        return able, parked

    def count_pending_batches(self) -> int:
        """How many batches it would take to run all that waits for its turn; streams with a clock may be ahead."""
        window, found = self._limits.max_undelivered_outputs, 0
        for key, waiters in self._by_key.items():
            tours = [
                waiter.walk_run
                for waiter in waiters
                if not waiter.walk_run.has_deadlines and not waiter.walk_run.is_preempted
            ]
            able = sum(not tour.emission_counts or not tour.is_backpressured(window) for tour in tours)
            found += -(-able // self._max_batch_size(key))
        return found

    def _max_batch_size(self, key: ModelBatchKey) -> int:
        """How many calls may share a batch: one by one they are done sooner, unless sharing saves time."""
        if self.cost_model.per_call_s(key) < CHEAP_CALL_S or not self._runs_separately(key):
            return self._limits.max_batch_size
        return 1 if self._choice_count % BATCH_PROBE_INTERVAL_BATCHES or self._is_unbatched(key) else 2

    def _is_unbatched(self, key: ModelBatchKey) -> bool:
        """Whether an op runs each call by itself."""
        return key[1] in self._limits.unbatched_keys.get(key[0], ())

    def _runs_separately(self, key: ModelBatchKey) -> bool:
        """Whether calls gain nothing by sharing a batch."""
        return self._is_unbatched(key) or not self.cost_model.gains_from_batching(key)

    def estimate_s(self, key: ModelBatchKey, count: int) -> float:
        """How long so many calls take that are there at the same time."""
        most = self._limits.max_batch_size
        if self._runs_separately(key):
            return count * self.cost_model.per_call_s(key)
        return (
            self.cost_model.predict_s(key, count)
            if count <= most
            else count / most * self.cost_model.predict_s(key, most)
        )

    def _should_wait_to_fill(self, now: float, key: ModelBatchKey, chosen: list[ReadyCall]) -> bool:
        """Whether it pays to wait for others, and harms nobody."""
        cost, count = self.cost_model.predict_s(key, len(chosen)), len(chosen)
        is_cheaper = 0 < self.cost_model.predict_s(key, 2 * count) < FILL_MAX_COST_RATIO * cost
        is_early = now - min(waiter.ready_since for waiter in chosen) < BATCH_FILL_WAIT_S
        has_plenty = all(not one.is_unstarted and FILL_MIN_SLACK_FACTOR * cost < one.slack < inf for one in chosen)
        return cost > BATCH_FILL_WAIT_S / 2 and is_cheaper and is_early and has_plenty

    def least_slack(self) -> float:
        """How long everybody who waits can wait, as it was when the last batch was chosen."""
        waiters = (waiter for found in self._by_key.values() for waiter in found if waiter.walk_run.has_deadlines)
        return max(0.0, min((waiter.slack for waiter in waiters), default=inf))

    def _typical_s(self, key: ModelBatchKey) -> float:
        return self.cost_model.typical_s(key) or 0.0

    def _dequeue(self, key: ModelBatchKey, chosen: list[ReadyCall]) -> list[ReadyCall]:
        for waiter in chosen:
            if waiter.walk_run.is_suspect(key[1]):  # nobody is to die with it
                chosen = [waiter]
                break
        taken = set(map(id, chosen))
        left = [waiter for waiter in self._by_key[key] if id(waiter) not in taken]
        if left:
            self._by_key[key] = left
        else:
            del self._by_key[key]
        return chosen
