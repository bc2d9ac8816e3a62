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
from mstar.plan.frame import Frame
from mstar.plan.tables import Do, Instruction
from mstar.worker.costs import Costs, Key
from mstar.worker.shares import Shares
from mstar.worker.tours import Tour

PATIENCE = 0.25
"""After so many seconds a call goes before cheaper ones."""
STARVED = 2.0
"""After so many seconds a call without a clock goes before those who are only fresh."""
ONCE = 0.05
"""So many seconds may a batch take that goes before cheaper ones because it is in no loop."""
MARGIN = 0.05
"""So many seconds before it is due an emission leaves here: it has a way to go, and costs are not known exactly."""
NEAR = 2.0
"""A call is pressing if its slack is shorter than so many times what all take that wait for one op."""
TRIFLE = 20.0
"""What takes less than this part of a batch goes before it, if it is of somebody else: after that more can share."""
LOST, FEW = 0.25, 2
"""If more than this part of all is late, and more than so few, there is more to do than can be done: then it is better
that those wait who came last than that everybody is late."""
COMPANY = 1.25
"""A batch with somebody late or fresh in it may take so many times as long as without those that are not."""


@dataclass(eq=False, slots=True)
class Waiter:
    """A call that is ready."""

    tour: Tour
    frame: Frame
    instruction: Instruction
    since: float
    job: Job | None = None
    """What has been run of it."""
    slack: float = inf
    """How long it can wait, when that was last looked at."""
    work: float = 0.0
    """How many seconds it then was to the emission for which it cannot wait any longer."""
    is_fresh: bool = False

    def look(self, now: float, costs: Costs) -> None:
        """Find out how long it can wait."""
        self.slack, self.is_fresh = inf, False
        tour, call = self.tour, self.instruction.detail
        for lead in call.leads:
            due, is_begun = tour.due(lead.kind)
            if due == inf:
                continue
            seconds = costs.until(tour.start.model, call, lead, self.frame)
            slack = due - now - seconds - MARGIN
            if slack < self.slack:
                self.slack, self.work, self.is_fresh = slack, seconds, not is_begun


Able = Mapping[Key, list[Waiter]]
"""Calls that may run, by batch key, in the order in which they came; at least one."""
Chosen = tuple[Key, list[Waiter]]
Most = Callable[[Key], int]
"""How many calls of a batch key may share a batch."""


class Order(Protocol):
    """A rule by which the next batch is chosen."""

    def choose(self, now: float, able: Able, costs: Costs, most: Most) -> Chosen:
        """The calls that run next, all of one batch key and no more of them than may."""
        ...


class BySlack:
    """The rule that is described above."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares

    def choose(self, now: float, able: Able, costs: Costs, most: Most) -> Chosen:
        """The calls that run next."""
        clocked = [(key, waiter) for key, found in able.items() for waiter in found if waiter.tour.is_clocked]
        for _, waiter in clocked:
            waiter.look(now, costs)
        if not clocked:
            return self.serve_most(now, able, costs, most)
        starved = _starved(now, able)
        if starved is None and any(waiter.slack == inf for _, waiter in clocked):
            # Somebody waits for words, which have no clock: what is promised nothing gets what others leave.
            able = {key: found for key, found in able.items() if any(one.tour.is_clocked for one in found)}
        near = NEAR * max(costs.of(key, len(found)) for key, found in able.items())
        found = ((id(waiter), _rank(key, waiter, near, costs)) for key, waiter in clocked)
        ranks = {waiter: rank for waiter, rank in found if rank is not None}
        late = sum(rank[0] == 0 for rank in ranks.values())
        if starved is not None and all(rank[0] >= 2 for rank in ranks.values()):
            return starved, self._shares.ordered(able[starved])[: most(starved)]
        if late > max(FEW, LOST * len(clocked)):
            aged = {key: sorted(found, key=lambda one: one.tour.number) for key, found in able.items()}
            return self.serve_most(now, aged, costs, most)
        if not ranks:
            return self.serve_most(now, _fitting(able, costs, clocked, most), costs, most)
        key = min((item for item in clocked if id(item[1]) in ranks), key=lambda item: ranks[id(item[1])])[0]
        if trifles := _trifles(key, able, costs):
            key = min(trifles, key=lambda one: costs.of(one, len(able[one])))
            return key, able[key][: most(key)]
        return key, _company(key, able[key], ranks, costs, most(key))

    def serve_most(self, now: float, able: Able, costs: Costs, most: Most) -> Chosen:
        """The calls that run next if nobody is in a hurry."""
        able = self._shares.turn(able)
        oldest = min(able, key=lambda key: able[key][0].since)
        is_late = now - able[oldest][0].since > PATIENCE
        longest = inf if _is_alone(able) else ONCE

        def rank(key: Key) -> tuple[bool, float]:
            cost = costs.usual(key) or 0.0
            return cost > longest or _is_repeated(able[key][0].frame), cost

        key = oldest if is_late else min(able, key=rank)
        return key, self._shares.ordered(able[key])[: most(key)]


def _rank(key: Key, waiter: Waiter, near: float, costs: Costs) -> tuple[int, float] | None:
    """What goes first: late, pressing, fresh; None for who has time."""
    if waiter.slack <= 0:
        return 0, waiter.work
    if waiter.slack <= near:
        return 1, waiter.slack
    if not waiter.is_fresh:
        return None
    is_long = _is_repeated(waiter.frame) or (costs.usual(key) or 0.0) > ONCE
    if is_long or not costs.gains(key):
        return 3, waiter.work
    return 2, -waiter.work  # who is farthest behind comes to where the others are, and they go on together


def _trifles(key: Key, able: Able, costs: Costs) -> list[Key]:
    """What takes next to no time, and brings somebody who is not there yet nearer to a batch."""
    there, longest = {id(waiter.tour) for waiter in able[key]}, costs.of(key, 1) / TRIFLE
    return [
        one
        for one, found in able.items()
        if costs.of(one, len(found)) < longest and any(id(waiter.tour) not in there for waiter in found)
    ]


def _company(
    key: Key, waiters: Sequence[Waiter], ranks: dict[int, tuple[int, float]], costs: Costs, most: int
) -> list[Waiter]:
    """Those of a batch key that cannot wait, and as many others as make nobody late."""
    hurried = sorted((one for one in waiters if id(one) in ranks), key=lambda one: ranks[id(one)])[:most]
    others = sorted((one for one in waiters if id(one) not in ranks), key=lambda one: one.slack)
    least = min(one.slack for one in hurried)
    longest = max(COMPANY * costs.of(key, len(hurried)), least)
    while others and len(hurried) < most and costs.of(key, len(hurried) + 1) <= longest:
        hurried.append(others.pop(0))
    return hurried


def _fitting(able: Able, costs: Costs, clocked: Iterable[tuple[Key, Waiter]], most: Most) -> Able:
    """Of all batch keys, those of which a batch makes nobody late who waits for something else."""
    least = dict[Key, float]()
    for key, waiter in clocked:
        least[key] = min(least.get(key, inf), waiter.slack)
    fitting: dict[Key, list[Waiter]] = {}
    for key, found in able.items():
        others = (slack for other, slack in least.items() if other != key)
        if costs.of(key, min(len(found), most(key))) <= min(others, default=inf):
            fitting[key] = found
    first = min(least, key=lambda key: least[key])
    return fitting or {first: able[first]}


def _starved(now: float, able: Able) -> Key | None:
    """What has waited too long without a clock that would make it go first."""
    waiting = [(found[0].since, key) for key, found in able.items() if not found[0].tour.is_clocked]
    if not waiting:
        return None
    since, key = min(waiting)
    return key if now - since > STARVED else None


def _is_repeated(frame: Frame) -> bool:
    """Whether this is in a loop, or in windows."""
    while frame.instruction is not None and frame.parent is not None:
        if frame.instruction.do in (Do.LOOP, Do.WINDOWS):
            return True
        frame = frame.parent
    return False


def _is_alone(able: Able) -> bool:
    """Whether all calls are of one walk of one request."""
    waiters = (waiter for found in able.values() for waiter in found)
    first = next(waiters).tour
    return all(waiter.tour is first for waiter in waiters)
