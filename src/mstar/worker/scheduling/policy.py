"""Whose calls run next, and together: those whose clients would run dry, then what serves most.

The *slack* of a call is how long it can still wait: until its client's next emission is due, less all that lies between
the call and that emission. A call is *late* if it has none, *pressing* if it has little, and *fresh* if its client has
nothing yet. These go first: who is late or fresh by how soon it is done, who is pressing by slack. But of the fresh,
those go before who have yet to do what is done once and gains by company, the farthest behind first: so they meet, and
share all that follows. Others who call the same op come along as far as that makes nobody late, and what takes next to
no time goes before if it brings somebody else.

While nobody is late, pressing or fresh, cheap ops go before dear ones, by what they were seen to cost: after a step of
a language model each request has its small checks to do, and those who are through with them wait for the others and
share the next step. What is done once, as reading a prompt, goes before what is done again and again, unless it takes
long and somebody else is there: who is through with it shares the steps of the others. A call that has waited too long
goes first all the same. Nothing is begun that would make somebody late.

If many are late, there is more to do than can be done: then what serves most goes first, and who came first.

Between keys, what has no clock is shared by weight (see `shares`). Which calls may run at all is decided in `batches`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from mstar.engine.jobs import Job
from mstar.plan.runtime.frame import Frame
from mstar.plan.tables import Instruction, Opcode
from mstar.worker.requests import WalkRun
from mstar.worker.scheduling.cost_model import CostModel, ModelBatchKey
from mstar.worker.scheduling.fair_share import FairShare

MAX_WAIT_S = 0.25
"""After so many seconds a call goes before cheaper ones."""
STARVATION_S = 2.0
"""After so many seconds a call without a clock goes before those who are only fresh."""
MAX_ONE_OFF_BATCH_S = 0.05
"""So many seconds may a batch take that goes before cheaper ones because it is in no loop."""
DELIVERY_MARGIN_S = 0.05
"""So many seconds before it is due an emission leaves here: it has a way to go, and costs are not known exactly."""
URGENT_FACTOR = 2.0
"""A call is pressing if its slack is shorter than so many times what all take that wait for one op."""
TRIVIAL_COST_DIVISOR = 20.0
"""What takes less than this part of a batch goes before it, if it is of somebody else: after that more can share."""
OVERLOAD_RATIO, OVERLOAD_MIN_OVERDUE_CALLS = 0.25, 2
"""If more than this part of all is late, and more than so few, there is more to do than can be done: then it is better
that those wait who came last than that everybody is late."""
URGENT_BATCH_GROWTH_FACTOR = 1.25
"""A batch with somebody late or fresh in it may take so many times as long as without those that are not."""


@dataclass(eq=False, slots=True)
class ReadyCall:
    """A call that is ready."""

    walk_run: WalkRun
    frame: Frame
    instruction: Instruction
    ready_since: float
    job: Job | None = None
    """What has been run of it."""
    slack: float = inf
    """How long it can wait, when that was last looked at."""
    work_s: float = 0.0
    """How many seconds it then was to the emission for which it cannot wait any longer."""
    is_unstarted: bool = False

    def update_slack(self, now: float, cost_model: CostModel) -> None:
        """Find out how long it can wait."""
        self.slack, self.is_unstarted = inf, False
        tour, call = self.walk_run, self.instruction.detail
        for lead in call.paths:
            due, is_begun = tour.next_due(lead.kind)
            if due == inf:
                continue
            seconds = cost_model.time_to_output_s(tour.start.model, call, lead, self.frame)
            slack = due - now - seconds - DELIVERY_MARGIN_S
            if slack < self.slack:
                self.slack, self.work_s, self.is_unstarted = slack, seconds, not is_begun


RunnableCalls = Mapping[ModelBatchKey, list[ReadyCall]]
"""Calls that may run, by batch key, in the order in which they came; at least one."""
ChosenBatch = tuple[ModelBatchKey, list[ReadyCall]]
MaxBatchSize = Callable[[ModelBatchKey], int]
"""How many calls of a batch key may share a batch."""


class SchedulingPolicy(Protocol):
    """A rule by which the next batch is chosen."""

    def choose(
        self, now: float, runnable: RunnableCalls, cost_model: CostModel, max_batch_size: MaxBatchSize
    ) -> ChosenBatch:
        """The calls that run next, all of one batch key and no more of them than may."""
        ...


class LeastSlackFirst:
    """The rule that is described above."""

    def __init__(self, fair_share: FairShare) -> None:
        self._fair_share = fair_share

    def choose(
        self, now: float, runnable: RunnableCalls, cost_model: CostModel, max_batch_size: MaxBatchSize
    ) -> ChosenBatch:
        """The calls that run next."""
        clocked = [
            (key, waiter) for key, found in runnable.items() for waiter in found if waiter.walk_run.has_deadlines
        ]
        for _, waiter in clocked:
            waiter.update_slack(now, cost_model)
        if not clocked:
            return self.choose_for_throughput(now, runnable, cost_model, max_batch_size)
        starved = _starved(now, runnable)
        if starved is None and any(waiter.slack == inf for _, waiter in clocked):
            # Somebody waits for words, which have no clock: what is promised nothing gets what others leave.
            runnable = {
                key: found for key, found in runnable.items() if any(one.walk_run.has_deadlines for one in found)
            }
        near = URGENT_FACTOR * max(cost_model.predict_s(key, len(found)) for key, found in runnable.items())
        found = ((id(waiter), _rank(key, waiter, near, cost_model)) for key, waiter in clocked)
        ranks = {waiter: rank for waiter, rank in found if rank is not None}
        late = sum(rank[0] == 0 for rank in ranks.values())
        if starved is not None and all(rank[0] >= 2 for rank in ranks.values()):
            return starved, self._fair_share.order_by_usage(runnable[starved])[: max_batch_size(starved)]
        if late > max(OVERLOAD_MIN_OVERDUE_CALLS, OVERLOAD_RATIO * len(clocked)):
            aged = {key: sorted(found, key=lambda one: one.walk_run.number) for key, found in runnable.items()}
            return self.choose_for_throughput(now, aged, cost_model, max_batch_size)
        if not ranks:
            return self.choose_for_throughput(
                now, _batches_without_overdue(runnable, cost_model, clocked, max_batch_size), cost_model, max_batch_size
            )
        key = min((item for item in clocked if id(item[1]) in ranks), key=lambda item: ranks[id(item[1])])[0]
        if trifles := _trivial_batches(key, runnable, cost_model):
            key = min(trifles, key=lambda one: cost_model.predict_s(one, len(runnable[one])))
            return key, runnable[key][: max_batch_size(key)]
        return key, _fill_batch(key, runnable[key], ranks, cost_model, max_batch_size(key))

    def choose_for_throughput(
        self, now: float, runnable: RunnableCalls, cost_model: CostModel, max_batch_size: MaxBatchSize
    ) -> ChosenBatch:
        """The calls that run next if nobody is in a hurry."""
        runnable = self._fair_share.next_tenant_calls(runnable)
        oldest = min(runnable, key=lambda key: runnable[key][0].ready_since)
        is_late = now - runnable[oldest][0].ready_since > MAX_WAIT_S
        longest = inf if _is_single_walk(runnable) else MAX_ONE_OFF_BATCH_S

        def rank(key: ModelBatchKey) -> tuple[bool, float]:
            cost = cost_model.typical_s(key) or 0.0
            return cost > longest or _is_in_loop(runnable[key][0].frame), cost

        key = oldest if is_late else min(runnable, key=rank)
        return key, self._fair_share.order_by_usage(runnable[key])[: max_batch_size(key)]


def _rank(
    key: ModelBatchKey, ready_call: ReadyCall, urgent_slack_s: float, cost_model: CostModel
) -> tuple[int, float] | None:
    """What goes first: late, pressing, fresh; None for who has time."""
    if ready_call.slack <= 0:
        return 0, ready_call.work_s
    if ready_call.slack <= urgent_slack_s:
        return 1, ready_call.slack
    if not ready_call.is_unstarted:
        return None
    is_long = _is_in_loop(ready_call.frame) or (cost_model.typical_s(key) or 0.0) > MAX_ONE_OFF_BATCH_S
    if is_long or not cost_model.gains_from_batching(key):
        return 3, ready_call.work_s
    return 2, -ready_call.work_s  # who is farthest behind comes to where the others are, and they go on together


def _trivial_batches(key: ModelBatchKey, runnable: RunnableCalls, cost_model: CostModel) -> list[ModelBatchKey]:
    """What takes next to no time, and brings somebody who is not there yet nearer to a batch."""
    there, longest = (
        {id(waiter.walk_run) for waiter in runnable[key]},
        cost_model.predict_s(key, 1) / TRIVIAL_COST_DIVISOR,
    )
    return [
        one
        for one, found in runnable.items()
        if cost_model.predict_s(one, len(found)) < longest and any(id(waiter.walk_run) not in there for waiter in found)
    ]


def _fill_batch(
    key: ModelBatchKey,
    calls: Sequence[ReadyCall],
    ranks: dict[int, tuple[int, float]],
    cost_model: CostModel,
    max_batch_size: int,
) -> list[ReadyCall]:
    """Those of a batch key that cannot wait, and as many others as make nobody late."""
    hurried = sorted((one for one in calls if id(one) in ranks), key=lambda one: ranks[id(one)])[:max_batch_size]
    others = sorted((one for one in calls if id(one) not in ranks), key=lambda one: one.slack)
    least = min(one.slack for one in hurried)
    longest = max(URGENT_BATCH_GROWTH_FACTOR * cost_model.predict_s(key, len(hurried)), least)
    while others and len(hurried) < max_batch_size and cost_model.predict_s(key, len(hurried) + 1) <= longest:
        hurried.append(others.pop(0))
    return hurried


def _batches_without_overdue(
    runnable: RunnableCalls,
    cost_model: CostModel,
    clocked: Iterable[tuple[ModelBatchKey, ReadyCall]],
    max_batch_size: MaxBatchSize,
) -> RunnableCalls:
    """Of all batch keys, those of which a batch makes nobody late who waits for something else."""
    least = dict[ModelBatchKey, float]()
    for key, waiter in clocked:
        least[key] = min(least.get(key, inf), waiter.slack)
    fitting: dict[ModelBatchKey, list[ReadyCall]] = {}
    for key, found in runnable.items():
        others = (slack for other, slack in least.items() if other != key)
        if cost_model.predict_s(key, min(len(found), max_batch_size(key))) <= min(others, default=inf):
            fitting[key] = found
    first = min(least, key=lambda key: least[key])
    return fitting or {first: runnable[first]}


def _starved(now: float, runnable: RunnableCalls) -> ModelBatchKey | None:
    """What has waited too long without a clock that would make it go first."""
    waiting = [(found[0].ready_since, key) for key, found in runnable.items() if not found[0].walk_run.has_deadlines]
    if not waiting:
        return None
    since, key = min(waiting)
    return key if now - since > STARVATION_S else None


def _is_in_loop(frame: Frame) -> bool:
    """Whether this is in a loop, or in windows."""
    while frame.instruction is not None and frame.parent is not None:
        if frame.instruction.opcode in (Opcode.LOOP, Opcode.WINDOWS):
            return True
        frame = frame.parent
    return False


def _is_single_walk(runnable: RunnableCalls) -> bool:
    """Whether all calls are of one walk of one request."""
    waiters = (waiter for found in runnable.values() for waiter in found)
    first = next(waiters).walk_run
    return all(waiter.walk_run is first for waiter in waiters)
