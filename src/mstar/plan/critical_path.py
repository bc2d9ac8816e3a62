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
from mstar.plan.partitioner import REGIONS, all_inner, all_steps
from mstar.plan.tables import PathToOutput, RemainingIterations

CallCounts = Counter[int]


@dataclass(frozen=True, slots=True)
class _PartialPath:
    """A way that is being found."""

    keys: CallCounts
    loops: tuple[RemainingIterations, ...] = ()

    def __add__(self, keys: CallCounts) -> _PartialPath:
        return replace(self, keys=self.keys + keys)

    def to_path(self, kind: str) -> PathToOutput:
        return PathToOutput(kind, tuple(sorted(self.keys.items())), self.loops)


class CriticalPaths:
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
        self._kinds_by_step: dict[Step, frozenset[str]] = {}
        self._successors: dict[Step, set[Step]] = {}
        for step in reversed(steps):
            self._find_successors(step)
        self._all_kinds = frozenset(step.node.kind for step in steps if isinstance(step.node, ir.Emit))

    def paths(self, call: Step) -> tuple[PathToOutput, ...]:
        """From a call to each kind of emission that it leads to; if to none, to the end of the walk."""
        found = [(kind, self._path_from(call, kind, 0, _PartialPath(CallCounts()))) for kind in sorted(self._all_kinds)]
        leads = tuple(way.to_path(kind) for kind, way in found if way is not None)
        return leads or (self._path_to_end(call, 0, _PartialPath(CallCounts())).to_path(""),)

    # ---------------------------------------------------------------- ways
    def _path_from(self, step: Step, kind: str, up: int, path: _PartialPath) -> _PartialPath | None:
        """On from a step, `up` regions outside the call, to the next emission of a kind."""
        body, after = step.body, self._successors[step]
        for target in body.steps:
            if target in after and kind in self._emission_kinds(target):
                between = self._count_calls(one for one in after if target in self._successors[one])
                return self._path_through(target, kind, up, 1, path + between)
        rest, owner = path + self._count_calls(after), body.owner
        if owner is None:
            return None
        if owner.kind in ("loop", "windows") and kind in self._emission_kinds(owner):
            return self._path_from_body(body, kind, up, rest)
        return self._path_from(owner, kind, up + 1, self._add_loop(owner, up, rest))

    def _path_to_end(self, step: Step, up: int, path: _PartialPath) -> _PartialPath:
        body, rest = step.body, path + self._count_calls(self._successors[step])
        if body.owner is None:
            return rest
        return self._path_to_end(body.owner, up + 1, self._add_loop(body.owner, up, rest))

    def _add_loop(self, owner: Step, up: int, path: _PartialPath) -> _PartialPath:
        """Out of a region, `up` of them outside the call: a loop goes round as often as it still has to."""
        if owner.kind != "loop":
            return path
        left = RemainingIterations(up, tuple(sorted(self._count_calls(owner.inner[0].steps).items())))
        return replace(path, loops=(*path.loops, left))

    def _path_from_body(self, body: Body, kind: str, up: int | None, path: _PartialPath) -> _PartialPath:
        """From the start of a body's next round (`up` is None: of its first) to the first emission of a kind."""
        target = next(step for step in body.steps if kind in self._emission_kinds(step))
        before = self._count_calls(one for one in body.steps if target in self._successors[one])
        return self._path_through(target, kind, up, 2, path + before)

    def _path_through(self, target: Step, kind: str, up: int | None, offset: int, path: _PartialPath) -> _PartialPath:
        """From just before a step that leads to a kind to the emission itself."""
        if target.kind == "emit":
            return path
        if target.inner:
            inner = next(
                body for body in target.inner if any(kind in self._emission_kinds(step) for step in body.steps)
            )
            return self._path_from_body(inner, kind, None, path)
        assert isinstance(target.node, ir.Put)
        consumers = self._consumers[target.node.stream]
        consumer = next(one for one in consumers if kind in self._emission_kinds(_enclosing_region(one)))
        path = self._add_window_fill(target, consumer, up, offset, path)
        around = _enclosing_region(consumer)
        return self._path_from_body(around.inner[0], kind, None, path) if around.inner else path

    def _add_window_fill(
        self, put: Step, consumer: Step, up: int | None, offset: int, path: _PartialPath
    ) -> _PartialPath:
        """On the way through a stream the loop that fills it goes round until the next window is full."""
        node, owner = consumer.node, put.body.owner
        if owner is None or owner.kind != "loop":
            return path
        first, stride = (node.first, node.stride) if isinstance(node, ir.Windows) else (1, 1)
        total = self._count_calls(put.body.steps)
        if up is None:
            return path + CallCounts({key: count * (first - 1) for key, count in total.items()})
        until = RemainingIterations(up, tuple(sorted(total.items())), first, stride, offset)
        return replace(path, loops=(*path.loops, until))

    # ---------------------------------------------------------------- what a walk is made of
    def _emission_kinds(self, step: Step) -> frozenset[str]:
        """The kinds that a step, what is inside it, and who reads what it puts into streams emit."""
        found = self._kinds_by_step.get(step)
        if found is None:
            self._kinds_by_step[step] = frozenset()  # while it is being found
            kinds = set[str]()
            if isinstance(step.node, ir.Emit) and step.kind == "emit":
                kinds.add(step.node.kind)
            for inner in all_inner(step):
                kinds |= self._emission_kinds(inner)
            if isinstance(step.node, ir.Put):
                for consumer in self._consumers[step.node.stream]:
                    kinds |= self._emission_kinds(_enclosing_region(consumer))
            found = self._kinds_by_step[step] = frozenset(kinds)
        return found

    def _count_calls(self, steps: Iterable[Step]) -> CallCounts:
        """All calls in steps and inside them, each loop as often as is known."""
        found = CallCounts()
        for step in steps:
            if isinstance(step.node, ir.Call):
                found[self._key(step.node)] += 1
            for inner in step.inner:
                times = step.node.steps if isinstance(step.node, ir.Loop) and isinstance(step.node.steps, int) else 1
                found += CallCounts({key: count * times for key, count in self._count_calls(inner.steps).items()})
        return found

    def _find_successors(self, step: Step) -> None:
        """The steps of the same body that cannot begin before it has ended; later steps are known by then."""
        later = step.body.steps[step.index + 1 :]
        mine = {*step.makes}
        found = set[Step]()
        for one in later:
            if step.index in one.before or mine & {*_used_values(one)}:
                found |= {one} | self._successors[one]
        self._successors[step] = found


def _enclosing_region(consumer: Step) -> Step:
    """The region in which a stream is read."""
    return consumer if consumer.inner else consumer.body.owner or consumer


def _used_values(step: Step) -> list[Val]:
    """The values that a step, or what is inside it, takes."""
    if step.kind not in REGIONS:
        return step.uses
    inside = [value for inner in all_inner(step) for value in inner.uses]
    inits = [carry.init for region in (step, *all_inner(step)) for carry in region.carries]
    return [*step.uses, *inside, *inits, *([step.control] if step.control is not None else [])]
