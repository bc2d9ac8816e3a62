"""Scheduling policy: least slack first, with earliest-deadline logic for streams and throughput for everything else.

Slack is the number of seconds that a ready call can wait before its client's next emission is late:

    slack = due - now - time_to_output - delivery_margin

`due` is when the client has played or read everything it has, `time_to_output` is the predicted work on the critical
path from this call to the emission. By its slack a call is

    overdue     slack <= 0
    urgent      0 < slack <= urgent_factor * (cost of the longest pending batch)
    unstarted   more slack than that, and the client has received nothing yet
    relaxed     everything else; text without a reading rate has infinite slack

The next batch is chosen in these steps:

1. If no ready call has deadlines (all are best effort), apply the throughput rule.
2. While a call waits for text, ignore ops that only best-effort calls need, unless one of these starves
   (has waited longer than `starvation_s`).
3. Rank the calls: overdue by remaining work, shortest first; urgent by slack; unstarted calls of a short op outside
   loops that gains from batching (a prefill), most remaining work first, so that new requests catch up with each other
   and decode in one batch; other unstarted calls by remaining work. Relaxed calls have no rank.
4. If a best-effort call starves and no call is overdue or urgent, its op runs.
5. Overload: if more than `overload_ratio` of the calls are overdue, not all deadlines can be met. Apply the throughput
   rule with the oldest requests first, so that new requests wait instead of all being late.
6. If no call has a rank, apply the throughput rule to the ops whose batch makes no other call overdue.
7. Otherwise the op of the first call runs. A trivial batch of another request goes before it: that request can join
   the next batch.
8. Fill the batch: ranked calls of this op first, then relaxed ones by slack, while the batch costs at most
   `urgent_batch_growth_factor` times its cost without them or fits into the least slack.

Throughput rule: choose the tenant by fair share; run the op of the oldest call if that has waited longer than
`max_wait_s`; otherwise prefer ops outside loops (unless they take longer than `max_one_off_batch_s` while other
requests are ready), then the cheapest op. Cheap checks after a decode step therefore run before the next step, and all
requests share that step.

Example with the default tuning: a codec call costs 0.1 s and a decode step 0.1 s. Stream A has a codec call and 0.30 s
of audio left; its slack is 0.30 - 0.10 - 0.05 = 0.15 s. Stream B has a decode step, followed by a codec call, and 5 s
left; its slack is 5 - 0.20 - 0.05 = 4.75 s. The longest batch costs 0.1 s, so slack up to 0.2 s is urgent: A runs, and
B's step waits.

Which calls can run at all is decided by the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Protocol

from mstar.plan.runtime.frame import Frame
from mstar.plan.tables import Opcode
from mstar.worker.scheduling.cost_model import CostModel, ModelBatchKey
from mstar.worker.scheduling.fair_share import FairShare
from mstar.worker.scheduling.ready_call import ReadyCall
from mstar.worker.scheduling.tuning import DEFAULT_TUNING, SchedulerTuning

RunnableCalls = Mapping[ModelBatchKey, list[ReadyCall]]
"""Calls that can run, by batch key, in order of arrival; at least one."""
ChosenBatch = tuple[ModelBatchKey, list[ReadyCall]]
MaxBatchSize = Callable[[ModelBatchKey], int]
"""Maximum number of calls in a batch of a batch key."""
Rank = tuple[int, float]
"""Class of a call (one of the constants below) and its order within the class; lower runs first."""

OVERDUE = 0
URGENT = 1
UNSTARTED_ONE_OFF = 2
UNSTARTED = 3


class SchedulingPolicy(Protocol):
    """Chooses the next batch."""

    def choose(
        self, now: float, runnable: RunnableCalls, cost_model: CostModel, max_batch_size: MaxBatchSize
    ) -> ChosenBatch:
        """Choose calls of one batch key, at most `max_batch_size` of them."""
        ...


class LeastSlackFirst:
    """The policy described above."""

    def __init__(self, fair_share: FairShare, tuning: SchedulerTuning = DEFAULT_TUNING) -> None:
        self._fair_share = fair_share
        self._tuning = tuning

    def choose(
        self, now: float, runnable: RunnableCalls, cost_model: CostModel, max_batch_size: MaxBatchSize
    ) -> ChosenBatch:
        """Choose the next batch. Comments refer to the steps in the module docstring."""
        tuning = self._tuning
        timed = [(key, call) for key, calls in runnable.items() for call in calls if call.walk_run.has_deadlines]
        for _, call in timed:
            call.update_slack(now, cost_model, tuning.delivery_margin_s)
        if self._is_single_call(runnable):  # all steps lead to it
            ((key, calls),) = runnable.items()
            return key, calls
        if not timed:  # step 1
            return self.choose_for_throughput(now, runnable, cost_model, max_batch_size)
        starved = self._starved_key(now, runnable)
        if starved is None and any(call.slack == inf for _, call in timed):  # step 2
            runnable = {
                key: calls for key, calls in runnable.items() if any(call.walk_run.has_deadlines for call in calls)
            }
        ranks = self._ranks(timed, runnable, cost_model)  # step 3
        if starved is not None and all(rank[0] > URGENT for rank in ranks.values()):  # step 4
            return starved, self._fair_share.order_by_usage(runnable[starved])[: max_batch_size(starved)]
        overdue = sum(rank[0] == OVERDUE for rank in ranks.values())
        if overdue > max(tuning.overload_min_overdue_calls, tuning.overload_ratio * len(timed)):  # step 5
            oldest_first = {
                key: sorted(calls, key=lambda call: call.walk_run.number) for key, calls in runnable.items()
            }
            return self.choose_for_throughput(now, oldest_first, cost_model, max_batch_size)
        if not ranks:  # step 6
            harmless = _batches_without_overdue(runnable, cost_model, timed, max_batch_size)
            return self.choose_for_throughput(now, harmless, cost_model, max_batch_size)
        key = min((item for item in timed if id(item[1]) in ranks), key=lambda item: ranks[id(item[1])])[0]
        if trivial := self._trivial_keys(key, runnable, cost_model):  # step 7
            key = min(trivial, key=lambda trivial_key: cost_model.predict_s(trivial_key, len(runnable[trivial_key])))
            return key, runnable[key][: max_batch_size(key)]
        return key, self._fill_batch(key, runnable[key], ranks, cost_model, max_batch_size(key))  # step 8

    def choose_for_throughput(
        self, now: float, runnable: RunnableCalls, cost_model: CostModel, max_batch_size: MaxBatchSize
    ) -> ChosenBatch:
        """Apply the throughput rule."""
        runnable = self._fair_share.next_tenant_calls(runnable)
        oldest = min(runnable, key=lambda key: runnable[key][0].ready_since)
        has_waited = now - runnable[oldest][0].ready_since > self._tuning.max_wait_s
        max_one_off_s = inf if _is_single_walk(runnable) else self._tuning.max_one_off_batch_s

        def rank(key: ModelBatchKey) -> tuple[bool, float]:
            cost_s = cost_model.typical_s(key) or 0.0
            return cost_s > max_one_off_s or _is_in_loop(runnable[key][0].frame), cost_s

        key = oldest if has_waited else min(runnable, key=rank)
        return key, self._fair_share.order_by_usage(runnable[key])[: max_batch_size(key)]

    def _is_single_call(self, runnable: RunnableCalls) -> bool:
        """Whether there is nothing to choose, and no share of tenants to account for."""
        return len(runnable) == 1 and not self._fair_share.has_usage and len(next(iter(runnable.values()))) == 1

    def _ranks(
        self, timed: Iterable[tuple[ModelBatchKey, ReadyCall]], runnable: RunnableCalls, cost_model: CostModel
    ) -> dict[int, Rank]:
        """Ranks by identity of the call; relaxed calls are missing."""
        if _have_no_deadline(timed):
            return {}
        longest_s = max(cost_model.predict_s(key, len(calls)) for key, calls in runnable.items())
        urgent_slack_s = self._tuning.urgent_factor * longest_s
        ranked = ((id(call), self._rank(key, call, urgent_slack_s, cost_model)) for key, call in timed)
        return {call_id: rank for call_id, rank in ranked if rank is not None}

    def _rank(self, key: ModelBatchKey, call: ReadyCall, urgent_slack_s: float, cost_model: CostModel) -> Rank | None:
        if call.slack <= 0:
            return OVERDUE, call.work_s
        if call.slack <= urgent_slack_s:
            return URGENT, call.slack
        if not call.is_unstarted:
            return None
        is_long = _is_in_loop(call.frame) or (cost_model.typical_s(key) or 0.0) > self._tuning.max_one_off_batch_s
        if is_long or not cost_model.gains_from_batching(key):
            return UNSTARTED, call.work_s
        return UNSTARTED_ONE_OFF, -call.work_s  # most work first: it catches up with the others

    def _trivial_keys(self, key: ModelBatchKey, runnable: RunnableCalls, cost_model: CostModel) -> list[ModelBatchKey]:
        """Batch keys that cost next to nothing and advance a walk run that is not in the chosen batch."""
        chosen_runs = {id(call.walk_run) for call in runnable[key]}
        max_cost_s = cost_model.predict_s(key, 1) / self._tuning.trivial_cost_divisor
        return [
            other
            for other, calls in runnable.items()
            if cost_model.predict_s(other, len(calls)) < max_cost_s
            and any(id(call.walk_run) not in chosen_runs for call in calls)
        ]

    def _fill_batch(
        self,
        key: ModelBatchKey,
        calls: Sequence[ReadyCall],
        ranks: dict[int, Rank],
        cost_model: CostModel,
        max_batch_size: int,
    ) -> list[ReadyCall]:
        """Ranked calls of a batch key, and as many relaxed ones as make none of them overdue."""
        batch = sorted((call for call in calls if id(call) in ranks), key=lambda call: ranks[id(call)])[:max_batch_size]
        relaxed = sorted((call for call in calls if id(call) not in ranks), key=lambda call: call.slack)
        least_slack_s = min(call.slack for call in batch)
        growth_limit_s = self._tuning.urgent_batch_growth_factor * cost_model.predict_s(key, len(batch))
        limit_s = max(growth_limit_s, least_slack_s)
        while relaxed and len(batch) < max_batch_size and cost_model.predict_s(key, len(batch) + 1) <= limit_s:
            batch.append(relaxed.pop(0))
        return batch

    def _starved_key(self, now: float, runnable: RunnableCalls) -> ModelBatchKey | None:
        """Batch key of the best-effort call that has waited longest, if it starves."""
        waiting = [
            (calls[0].ready_since, key) for key, calls in runnable.items() if not calls[0].walk_run.has_deadlines
        ]
        if not waiting:
            return None
        since, key = min(waiting)
        return key if now - since > self._tuning.starvation_s else None


def _batches_without_overdue(
    runnable: RunnableCalls,
    cost_model: CostModel,
    timed: Iterable[tuple[ModelBatchKey, ReadyCall]],
    max_batch_size: MaxBatchSize,
) -> RunnableCalls:
    """Batch keys whose batch makes no call of another key overdue; at least the one with the least slack."""
    if _have_no_deadline(timed):
        return runnable
    least_slack = dict[ModelBatchKey, float]()
    for key, call in timed:
        least_slack[key] = min(least_slack.get(key, inf), call.slack)
    fitting: dict[ModelBatchKey, list[ReadyCall]] = {}
    for key, calls in runnable.items():
        others = (slack for other, slack in least_slack.items() if other != key)
        if cost_model.predict_s(key, min(len(calls), max_batch_size(key))) <= min(others, default=inf):
            fitting[key] = calls
    first = min(least_slack, key=lambda key: least_slack[key])
    return fitting or {first: runnable[first]}


def _have_no_deadline(timed: Iterable[tuple[ModelBatchKey, ReadyCall]]) -> bool:
    """Whether no call has a deadline: text without a reading rate, the most frequent case."""
    for _, call in timed:  # noqa: SIM110 - a generator costs a call for each of them, at every choice
        if call.slack != inf:
            return False
    return True


def _is_in_loop(frame: Frame) -> bool:
    """Whether a frame is inside a `loop` or `windows` region."""
    while frame.instruction is not None and frame.parent is not None:
        if frame.instruction.opcode in (Opcode.LOOP, Opcode.WINDOWS):
            return True
        frame = frame.parent
    return False


def _is_single_walk(runnable: RunnableCalls) -> bool:
    """Whether all calls belong to one walk run."""
    calls = (call for key_calls in runnable.values() for call in key_calls)
    first = next(calls).walk_run
    return all(call.walk_run is first for call in calls)
