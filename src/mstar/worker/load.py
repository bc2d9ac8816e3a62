"""What a worker has to do so that no stream runs dry, what one more would need, and how late emissions were.

Learned from what went by: how many calls of each op a second of sound, film or action takes, and how many come before
the first of it. Nothing is decided here: conductors take on whom they think they can serve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from mstar.plan.tables import Emit
from mstar.wire.figures import KindCount, Load, Need
from mstar.wire.pace import is_due, seconds_of
from mstar.worker.costs import Key
from mstar.worker.tours import Guest, Tour

REMEMBERED = 120.0
"""So many seconds of sound, film or action of a model count; of what is older, half."""
CLOSE = 0.25
"""A forecast that is wrong by no more than this part is close."""
WEIGHT = 0.2
"""How much the newest stream counts in what comes before a first emission."""


@dataclass(slots=True)
class _Habit:
    """What streams of one model usually do."""

    seconds: float = 0.0
    """For how long streams had something to play while the next was made."""
    calls: Counter[int] = field(default_factory=Counter[int])
    """By batch key, for all those seconds."""
    before: dict[int, float] = field(default_factory=dict[int, float])
    """By batch key, the calls before a first emission."""

    def played(self, seconds: float) -> None:
        self.seconds += seconds
        if self.seconds > REMEMBERED:
            self.seconds /= 2
            self.calls = Counter({key: count // 2 for key, count in self.calls.items()})

    def began(self, calls: dict[int, int]) -> None:
        if not self.before:
            self.before = {key: float(count) for key, count in calls.items()}
        for key in {*self.before, *calls}:
            usual = self.before.get(key, 0.0)
            self.before[key] = usual + WEIGHT * (calls.get(key, 0) - usual)


class Gauge:
    """The habits of models at one worker."""

    def __init__(self, seconds: Callable[[Key, int], float]) -> None:
        self._seconds = seconds
        """How long so many calls of a batch key take that are there at the same time."""
        self._habits: dict[str, _Habit] = {}
        self._kinds: dict[tuple[str, str], KindCount] = {}

    def kinds(self) -> list[KindCount]:
        """What emissions came to until now."""
        return [replace(one) for one in self._kinds.values()]

    def called(self, tour: Tour, key: int) -> None:
        """A call has run."""
        if tour.is_clocked and (habit := self._habits.get(tour.start.model)) is not None:
            habit.calls[key] += 1

    def emitted(self, now: float, tour: Tour, table: Emit, value: object) -> None:
        """Something goes to a client."""
        start, kind = tour.start, table.kind
        if not is_due(kind, start.pace):
            return
        is_first = not tour.players
        before = 0.0 if kind not in tour.players else tour.players[kind].lasts
        late = tour.play(now, kind, seconds_of(kind, value, dict(table.clock), start.pace))
        if late is None:
            return
        habit = self._habits.setdefault(start.model, _Habit())
        habit.played(before)  # for so long it could wait for this one; for the first one it could not
        count = self._kinds.setdefault((start.model, kind), KindCount(start.model, kind))
        count.count += 1
        if late > 0:
            count.late += 1
            count.late_s += late
        if is_first:
            habit.began(tour.calls)
            if start.forecast > 0:
                took = now - (tour.first_due - start.pace.soon)
                missed = abs(start.forecast - took) / max(took, 1e-9)
                count.forecasts += 1
                count.missed += missed
                count.close += missed <= CLOSE

    def load(self, guests: Iterable[Guest], waiting: int = 0) -> Load:
        """What there is to do now; `waiting` batches are ready."""
        streams, fresh = Counter[str](), Counter[str]()
        for guest in guests:
            tour = guest.tour
            if tour is not None and tour.is_clocked:
                streams[tour.start.model] += 1
                fresh[tour.start.model] += not tour.players
        needs, share = dict[str, Need](), 0.0
        for model, habit in self._habits.items():
            if habit.seconds:
                here = self._share(model, habit, streams[model])
                share += here
                first = self._first(model, habit, fresh[model] + 1)
                needs[model] = Need(
                    alone=self._share(model, habit, 1),
                    more=self._share(model, habit, streams[model] + 1) - here,
                    first=first,
                    each=self._first(model, habit, fresh[model] + 2) - first,
                )
        return Load(share, needs, waiting, sum(count.late for count in self._kinds.values()))

    def _share(self, model: str, habit: _Habit, streams: int) -> float:
        """The part of all time that so many streams need, which share their batches."""
        if not streams:
            return 0.0
        calls = habit.calls.items()
        return sum(count * self._seconds((model, key), streams) for key, count in calls) / habit.seconds

    def _first(self, model: str, habit: _Habit, streams: int) -> float:
        return sum(count * self._seconds((model, key), streams) for key, count in habit.before.items())
