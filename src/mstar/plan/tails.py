"""How far it is from each call to what the client gets next of each kind: which calls come between.

Calls are listed, not costed: what an op costs is learned where it runs. A loop in between counts as often as it still
has to go round, a stream as many rounds as the next window still lacks items; how often that is follows from where a
request is (see `Round`). Calls that could run side by side are added up, as one engine runs one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from mstar.graph import ir
from mstar.plan.lower import Body, Lowered, Step, Val
from mstar.plan.seats import REGIONS, all_inner, all_steps
from mstar.plan.tables import Lead, Round

Keys = Counter[int]


@dataclass(frozen=True, slots=True)
class _Way:
    """A way that is being found."""

    keys: Keys
    rounds: tuple[Round, ...] = ()

    def __add__(self, keys: Keys) -> _Way:
        return replace(self, keys=self.keys + keys)

    def lead(self, kind: str) -> Lead:
        return Lead(kind, tuple(sorted(self.keys.items())), self.rounds)


class Tails:
    """The leads of every call of one walk. `key` gives the batch key of a call."""

    def __init__(self, lowered: Lowered, key: Callable[[ir.Call], int]) -> None:
        self._key = key
        self._consumers: dict[str, list[Step]] = {}
        steps = [*all_steps(lowered.root)]
        for stream, readers in lowered.readers.items():
            ends = {step.makes[0] for step in readers}
            self._consumers[stream] = [
                step for step in steps if step.kind in ("windows", "get") and ends & {*step.uses}
            ]
        self._kinds: dict[Step, frozenset[str]] = {}
        self._after: dict[Step, set[Step]] = {}
        for step in reversed(steps):
            self._find_after(step)
        self._all = frozenset(step.node.kind for step in steps if isinstance(step.node, ir.Emit))

    def leads(self, call: Step) -> tuple[Lead, ...]:
        """From a call to each kind of emission that it leads to; if to none, to the end of the walk."""
        found = [(kind, self._onward(call, kind, 0, _Way(Keys()))) for kind in sorted(self._all)]
        leads = tuple(way.lead(kind) for kind, way in found if way is not None)
        return leads or (self._to_the_end(call, 0, _Way(Keys())).lead(""),)

    # ---------------------------------------------------------------- ways
    def _onward(self, step: Step, kind: str, up: int, way: _Way) -> _Way | None:
        """On from a step, `up` regions outside the call, to the next emission of a kind."""
        body, after = step.body, self._after[step]
        for target in body.steps:
            if target in after and kind in self._kinds_of(target):
                between = self._total(one for one in after if target in self._after[one])
                return self._reach(target, kind, up, 1, way + between)
        rest, owner = way + self._total(after), body.owner
        if owner is None:
            return None
        if owner.kind in ("loop", "windows") and kind in self._kinds_of(owner):
            return self._first(body, kind, up, rest)
        return self._onward(owner, kind, up + 1, self._round(owner, up, rest))

    def _to_the_end(self, step: Step, up: int, way: _Way) -> _Way:
        body, rest = step.body, way + self._total(self._after[step])
        if body.owner is None:
            return rest
        return self._to_the_end(body.owner, up + 1, self._round(body.owner, up, rest))

    def _round(self, owner: Step, up: int, way: _Way) -> _Way:
        """Out of a region, `up` of them outside the call: a loop goes round as often as it still has to."""
        if owner.kind != "loop":
            return way
        left = Round(up, tuple(sorted(self._total(owner.inner[0].steps).items())))
        return replace(way, rounds=(*way.rounds, left))

    def _first(self, body: Body, kind: str, up: int | None, way: _Way) -> _Way:
        """From the start of a body's next round (`up` is None: of its first) to the first emission of a kind."""
        target = next(step for step in body.steps if kind in self._kinds_of(step))
        before = self._total(one for one in body.steps if target in self._after[one])
        return self._reach(target, kind, up, 2, way + before)

    def _reach(self, target: Step, kind: str, up: int | None, offset: int, way: _Way) -> _Way:
        """From just before a step that leads to a kind to the emission itself."""
        if target.kind == "emit":
            return way
        if target.inner:
            inner = next(body for body in target.inner if any(kind in self._kinds_of(step) for step in body.steps))
            return self._first(inner, kind, None, way)
        assert isinstance(target.node, ir.Put)
        consumers = self._consumers[target.node.stream]
        consumer = next(one for one in consumers if kind in self._kinds_of(_around(one)))
        way = self._until_full(target, consumer, up, offset, way)
        around = _around(consumer)
        return self._first(around.inner[0], kind, None, way) if around.inner else way

    def _until_full(self, put: Step, consumer: Step, up: int | None, offset: int, way: _Way) -> _Way:
        """On the way through a stream the loop that fills it goes round until the next window is full."""
        node, owner = consumer.node, put.body.owner
        if owner is None or owner.kind != "loop":
            return way
        first, stride = (node.first, node.stride) if isinstance(node, ir.Windows) else (1, 1)
        total = self._total(put.body.steps)
        if up is None:
            return way + Keys({key: count * (first - 1) for key, count in total.items()})
        until = Round(up, tuple(sorted(total.items())), first, stride, offset)
        return replace(way, rounds=(*way.rounds, until))

    # ---------------------------------------------------------------- what a walk is made of
    def _kinds_of(self, step: Step) -> frozenset[str]:
        """The kinds that a step, what is inside it, and who reads what it puts into streams emit."""
        found = self._kinds.get(step)
        if found is None:
            self._kinds[step] = frozenset()  # while it is being found
            kinds = set[str]()
            if isinstance(step.node, ir.Emit) and step.kind == "emit":
                kinds.add(step.node.kind)
            for inner in all_inner(step):
                kinds |= self._kinds_of(inner)
            if isinstance(step.node, ir.Put):
                for consumer in self._consumers[step.node.stream]:
                    kinds |= self._kinds_of(_around(consumer))
            found = self._kinds[step] = frozenset(kinds)
        return found

    def _total(self, steps: Iterable[Step]) -> Keys:
        """All calls in steps and inside them, each loop as often as is known."""
        found = Keys()
        for step in steps:
            if isinstance(step.node, ir.Call):
                found[self._key(step.node)] += 1
            for inner in step.inner:
                times = step.node.steps if isinstance(step.node, ir.Loop) and isinstance(step.node.steps, int) else 1
                found += Keys({key: count * times for key, count in self._total(inner.steps).items()})
        return found

    def _find_after(self, step: Step) -> None:
        """The steps of the same body that cannot begin before it has ended; later steps are known by then."""
        later = step.body.steps[step.index + 1 :]
        mine = {*step.makes}
        found = set[Step]()
        for one in later:
            if step.index in one.before or mine & {*_taken(one)}:
                found |= {one} | self._after[one]
        self._after[step] = found


def _around(consumer: Step) -> Step:
    """The region in which a stream is read."""
    return consumer if consumer.inner else consumer.body.owner or consumer


def _taken(step: Step) -> list[Val]:
    """The values that a step, or what is inside it, takes."""
    if step.kind not in REGIONS:
        return step.uses
    inside = [value for inner in all_inner(step) for value in inner.uses]
    inits = [carry.init for region in (step, *all_inner(step)) for carry in region.carries]
    return [*step.uses, *inside, *inits, *([step.control] if step.control is not None else [])]
