"""Which calls run next, and together.

Cheap ops go before dear ones, by what they were seen to cost: after a step of a language model each request has its
small checks to do, and those who are through with them wait for the others and share the next step. A call that has
waited too long goes first all the same. While a batch runs, only one that costs no more may be queued behind it, and
never one of the same op: its calls had better wait and be joined by those that the running one leads to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from mstar.engine.jobs import Job
from mstar.plan.frame import Frame, Ready
from mstar.plan.tables import Call, Instruction
from mstar.worker.tours import Tour

Key = tuple[str, int]
"""A model, and the number of a batch key in its plans."""
PATIENCE = 0.25
"""After so many seconds a call goes before cheaper ones."""
WEIGHT = 0.2
"""How much the newest batch counts in what an op is thought to cost."""


@dataclass(eq=False, slots=True)
class Waiter:
    """A call that is ready."""

    tour: Tour
    frame: Frame
    instruction: Instruction
    since: float
    job: Job | None = None
    """What has been run of it."""


@dataclass(slots=True)
class Limits:
    """How many calls share a batch at most, and how many emissions a client may be behind."""

    batch: int = 64
    window: int = 64


class Waiting:
    """The calls that are ready, by batch key, in the order in which they came."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_key: dict[Key, list[Waiter]] = {}
        self._cost: dict[Key, float] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def __bool__(self) -> bool:
        return bool(self._by_key)

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

    def cost(self, key: Key) -> float | None:
        """How long a batch of this key has taken lately."""
        return self._cost.get(key)

    def learn(self, key: Key, seconds: float) -> None:
        """A batch has taken so long."""
        before = self._cost.get(key, seconds)
        self._cost[key] = before + WEIGHT * (seconds - before)

    def choose(self, now: float, running: Key | None) -> tuple[Key, list[Waiter]] | None:
        """The next batch, to be queued behind the one that is running if there is one; None if it is better to wait."""
        window = self._limits.window
        able: dict[Key, list[Waiter]] = {}
        parked: list[tuple[int, Key, Waiter]] = []
        for key, waiters in self._by_key.items():
            free: list[Waiter] = []
            for waiter in waiters:
                tour = waiter.tour
                if tour.is_parked:
                    parked.append((tour.number, key, waiter))
                elif not tour.counts or not tour.is_held_up(window):
                    free.append(waiter)
            if free:
                able[key] = free
        if running is not None:
            most = self._cost.get(running, 0.0)
            able = {key: found for key, found in able.items() if key != running and self._cost.get(key, 0.0) <= most}
        elif not able and parked:
            _, key, waiter = min(parked, key=lambda one: one[0])
            waiter.tour.is_parked = False
            able = {key: [waiter]}
        if not able:
            return None
        oldest = min(able, key=lambda key: able[key][0].since)
        is_late = now - able[oldest][0].since > PATIENCE
        key = oldest if is_late else min(able, key=lambda key: self._cost.get(key, 0.0))
        return key, self._take(key, able[key])

    def _take(self, key: Key, able: list[Waiter]) -> list[Waiter]:
        chosen = able[: self._limits.batch]
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
