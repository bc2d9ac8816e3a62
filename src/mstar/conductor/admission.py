"""Whom a conductor takes on, by what workers say they have to do: nobody who would make a promise be broken.

A promise is given to who asked for it (see `wire.pace`). Nothing is refused for its sake while nobody has one, and a
model whose streams cannot keep up even alone is served as well as it can be.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Set
from typing import TYPE_CHECKING

from mstar.wire.figures import Load
from mstar.wire.messages import Submit

if TYPE_CHECKING:
    from mstar.conductor.core import Served

FULL = 0.9
"""So much of a worker streams may need: costs are not known exactly, and others want something too."""
ENDED = 32
"""By so many requests that ended last it is told how fast there is room for others."""


class Admission:
    """What workers have to do, as far as it is known."""

    def __init__(self, served: Mapping[str, Served], asleep: Set[str] = frozenset()) -> None:
        self._asleep = asleep
        """Workers that nobody is sent to."""
        self._spots = {
            name: {spot.workers for plan in one.plans.walks.values() for spot in plan.spots}
            for name, one in served.items()
        }
        """Of each model: groups of workers of which its requests use one each."""
        self._loads: dict[str, Load] = {}
        self._taken: dict[str, Counter[str]] = {}
        """By worker: of which models requests were taken on since it last said what it has to do."""
        self._promised: set[str] = set()
        self._ended: deque[float] = deque(maxlen=ENDED)

    # ---------------------------------------------------------------- what happens
    def heard(self, worker: str, load: Load) -> None:
        """A worker says what it has to do."""
        self._loads[worker] = load
        self._taken.pop(worker, None)

    def lost(self, worker: str) -> None:
        """A worker is gone."""
        self._loads.pop(worker, None)
        self._taken.pop(worker, None)

    def took(self, submit: Submit) -> None:
        """A request is taken on."""
        if submit.pace.first_s is not None:
            self._promised.add(submit.rid)
        for workers in self._groups(submit.model):
            least = min(workers, key=lambda worker: self._share(worker, submit.model))
            self._taken.setdefault(least, Counter())[submit.model] += 1

    def ended(self, now: float, rid: str) -> None:
        """A request is over."""
        self._promised.discard(rid)
        self._ended.append(now)

    # ---------------------------------------------------------------- what follows
    def load_of(self, worker: str) -> Load | None:
        """What a worker has to do, as it last said."""
        return self._loads.get(worker)

    def _groups(self, model: str) -> Collection[tuple[str, ...]]:
        """Groups of workers of which a request uses one each; those asleep count only where all are."""
        asleep = self._asleep
        if not asleep:
            return self._spots[model]
        return [tuple(one for one in group if one not in asleep) or group for group in self._spots[model]]

    def has_room(self, submit: Submit) -> bool:
        """Whether this one can be served beside those that are."""
        is_bound = self._promised or submit.pace.first_s is not None
        if submit.pace.is_batch or not is_bound:
            return True
        for workers in self._groups(submit.model):
            if all(self._is_full(worker, submit.model) for worker in workers):
                return False
        return True

    def _first_s(self, submit: Submit) -> float:
        """In how many seconds its first emission would come if it began now."""
        groups = self._groups(submit.model)
        return sum(min(self._first(worker, submit.model) for worker in workers) for workers in groups)

    def forecast(self, now: float, submit: Submit, waiting: int) -> float:
        """In how many seconds the first emission of a request will come, behind so many that wait; 0: nobody knows."""
        first = self._first_s(submit)
        has_to_wait = first and (waiting or not self.has_room(submit))
        return first + self.wait_s(now, waiting + 1) if has_to_wait else first

    def too_late(self, now: float, submit: Submit, waiting: int) -> float:
        """By how many seconds the promise that a request asks for would be broken."""
        wanted = submit.pace.first_s
        return 0.0 if wanted is None else max(0.0, self.forecast(now, submit, waiting) - wanted)

    def wait_s(self, now: float, waiting: int) -> float:
        """For how many seconds so many wait for room, by how fast requests have ended lately."""
        ended = self._ended
        each = (now - ended[0]) / len(ended) if ended else 1.0
        return min(30.0, max(0.1, each * waiting))

    def _share(self, worker: str, model: str) -> float:
        """What a worker would have to do with one more of a model."""
        load = self._loads.get(worker)
        if load is None:
            return 0.0
        new = self._taken.get(worker, Counter()) + Counter([model])
        return load.share + sum(load.needs[name].more * count for name, count in new.items() if name in load.needs)

    def _is_full(self, worker: str, model: str) -> bool:
        """Whether one more of a model would be too much for a worker that could keep up with it alone."""
        load = self._loads.get(worker)
        keeps_up = load is not None and model in load.needs and load.needs[model].alone <= FULL
        return keeps_up and self._share(worker, model) > FULL

    def _first(self, worker: str, model: str) -> float:
        load = self._loads.get(worker)
        if load is None or model not in load.needs:
            return 0.0
        need = load.needs[model]
        return need.first + need.each * self._taken.get(worker, Counter())[model]
