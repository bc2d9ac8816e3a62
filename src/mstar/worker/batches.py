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

from mstar.plan.frame import Ready
from mstar.plan.tables import Call
from mstar.worker.costs import Costs, Key
from mstar.worker.order import BySlack, Chosen, Order, Waiter
from mstar.worker.shares import Shares
from mstar.worker.tours import Tour

HELD = 0.03
"""For so many seconds a call waits for others that may share its batch, if that takes at least half as long."""
TINY = 0.002
"""Calls that take fewer seconds are run together whether they gain by it or not: so is what has to be done for each."""
TRY = 64
"""Once in so many batches two calls are tried together, of an op that gained nothing by that before."""
PLENTY, CHEAPER = 10.0, 1.5
"""A batch waits if everybody in it can wait for so many times what it takes, and one twice as large takes less than so
many times as long."""


@dataclass(slots=True)
class Limits:
    """How many calls share a batch at most, how many emissions a client may be behind, and the rule that chooses."""

    batch: int = 64
    window: int = 64
    order: Order | None = None
    """None: by slack."""
    alone: Mapping[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    """By model, the batch keys of ops that run each call by itself."""


class Waiting:
    """The calls that are ready, by batch key, in the order in which they came."""

    def __init__(self, limits: Limits) -> None:
        self.costs = Costs()
        self._limits = limits
        self._shares = Shares()
        self._order = limits.order or BySlack(self._shares)
        self._by_key: dict[Key, list[Waiter]] = {}
        self._tries = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __iter__(self) -> Iterator[Waiter]:
        return itertools.chain.from_iterable(self._by_key.values())

    def add(self, now: float, ready: Iterable[Ready]) -> None:
        """Calls have become ready."""
        for frame, instruction in ready:
            tour, call = cast("Tour", frame.run.host), instruction.detail
            assert isinstance(call, Call)
            if not tour.is_over:
                waiters = self._by_key.setdefault((tour.start.model, call.key), [])
                waiters.append(Waiter(tour, frame, instruction, now))

    def put_back(self, key: Key, waiter: Waiter) -> None:
        """A call has not been run to its end: it goes on before those that came later."""
        self._by_key.setdefault(key, []).insert(0, waiter)

    def drop(self, tour: Tour) -> None:
        """Forget the calls of a tour that is over."""
        for key, waiters in list(self._by_key.items()):
            left = [waiter for waiter in waiters if waiter.tour is not tour]
            if left:
                self._by_key[key] = left
            else:
                del self._by_key[key]

    def learn(self, key: Key, waiters: list[Waiter], seconds: float) -> None:
        """A batch has taken so long."""
        self.costs.learn(key, len(waiters), seconds)
        self._shares.took(waiters, seconds)

    def choose(self, now: float, running: Key | None, elsewhere: int = 0) -> Chosen | None:
        """The next batch, to be queued behind the one that is running if there is one; None if it is better to wait.

        `elsewhere` is how many of those that are here are at other workers too.
        """
        able, parked = self._ready()
        if running is not None:
            able = {key: found for key, found in able.items() if key != running}
        elif not able and parked:
            _, key, waiter = min(parked, key=lambda one: one[0])
            waiter.tour.is_parked = False
            able = {key: [waiter]}
        if not able:
            return None
        self._tries += 1
        key, chosen = self._order.choose(now, able, self.costs, self._most)
        if running is not None and self._usual(key) > self._usual(running):
            return None  # it takes long: who comes while the other runs may be in more of a hurry
        if running is None and elsewhere > len(chosen) and self._may_fill(now, key, chosen):
            return None
        return key, self._take(key, chosen)

    def _ready(self) -> tuple[dict[Key, list[Waiter]], list[tuple[int, Key, Waiter]]]:
        """The calls that may run, and those of tours that had to make room."""
        able: dict[Key, list[Waiter]] = {}
        parked: list[tuple[int, Key, Waiter]] = []
        for key, waiters in self._by_key.items():
            free: list[Waiter] = []
            for waiter in waiters:
                tour = waiter.tour
                if tour.is_parked:
                    parked.append((tour.number, key, waiter))
                elif not tour.counts or not tour.is_held_up(self._limits.window):
                    free.append(waiter)
            if free:
                able[key] = free
        return able, parked

    def batches(self) -> int:
        """How many batches it would take to run all that waits for its turn; streams with a clock may be ahead."""
        window, found = self._limits.window, 0
        for key, waiters in self._by_key.items():
            tours = [waiter.tour for waiter in waiters if not waiter.tour.is_clocked and not waiter.tour.is_parked]
            able = sum(not tour.counts or not tour.is_held_up(window) for tour in tours)
            found += -(-able // self._most(key))
        return found

    def _most(self, key: Key) -> int:
        """How many calls may share a batch: one by one they are done sooner, unless sharing saves time."""
        if self.costs.each(key) < TINY or not self._is_apart(key):
            return self._limits.batch
        return 1 if self._tries % TRY or self._is_alone(key) else 2

    def _is_alone(self, key: Key) -> bool:
        """Whether an op runs each call by itself."""
        return key[1] in self._limits.alone.get(key[0], ())

    def _is_apart(self, key: Key) -> bool:
        """Whether calls gain nothing by sharing a batch."""
        return self._is_alone(key) or not self.costs.gains(key)

    def seconds(self, key: Key, count: int) -> float:
        """How long so many calls take that are there at the same time."""
        most = self._limits.batch
        if self._is_apart(key):
            return count * self.costs.each(key)
        return self.costs.of(key, count) if count <= most else count / most * self.costs.of(key, most)

    def _may_fill(self, now: float, key: Key, chosen: list[Waiter]) -> bool:
        """Whether it pays to wait for others, and harms nobody."""
        cost, count = self.costs.of(key, len(chosen)), len(chosen)
        is_cheaper = 0 < self.costs.of(key, 2 * count) < CHEAPER * cost
        is_early = now - min(waiter.since for waiter in chosen) < HELD
        has_plenty = all(not one.is_fresh and PLENTY * cost < one.slack < inf for one in chosen)
        return cost > HELD / 2 and is_cheaper and is_early and has_plenty

    def least_slack(self) -> float:
        """How long everybody who waits can wait, as it was when the last batch was chosen."""
        waiters = (waiter for found in self._by_key.values() for waiter in found if waiter.tour.is_clocked)
        return max(0.0, min((waiter.slack for waiter in waiters), default=inf))

    def _usual(self, key: Key) -> float:
        return self.costs.usual(key) or 0.0

    def _take(self, key: Key, chosen: list[Waiter]) -> list[Waiter]:
        for waiter in chosen:
            if waiter.tour.is_suspect(key[1]):  # nobody is to die with it
                chosen = [waiter]
                break
        taken = set(map(id, chosen))
        left = [waiter for waiter in self._by_key[key] if id(waiter) not in taken]
        if left:
            self._by_key[key] = left
        else:
            del self._by_key[key]
        return chosen
