"""Critical paths: the calls between each call and the next emission of each kind.

The scheduler computes slack from them. A path lists calls by batch key; workers know what each costs. A loop on the
path counts its remaining iterations, a stream the iterations until its next window is full; both depend on a request's
progress (see `RemainingIterations`). Calls that could run in parallel are added, because an engine runs one at a time.
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
    """A path under construction."""

    keys: CallCounts
    loops: tuple[RemainingIterations, ...] = ()

    def __add__(self, keys: CallCounts) -> _PartialPath:
        return replace(self, keys=self.keys + keys)

    def to_path(self, kind: str) -> PathToOutput:
        return PathToOutput(kind, tuple(sorted(self.keys.items())), self.loops)


class CriticalPaths:
    """Critical paths of every call of one walk. `key` maps a call to its batch key."""

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
        """Paths from a call to each kind of emission that it leads to, or to the end of the walk if there is none."""
        by_kind = [
            (kind, self._path_from(call, kind, 0, _PartialPath(CallCounts()))) for kind in sorted(self._all_kinds)
        ]
        paths = tuple(path.to_path(kind) for kind, path in by_kind if path is not None)
        return paths or (self._path_to_end(call, 0, _PartialPath(CallCounts())).to_path(""),)

    # ---------------------------------------------------------------- paths
    def _path_from(self, step: Step, kind: str, up: int, path: _PartialPath) -> _PartialPath | None:
        """Extend a path from a step, `up` regions outside the call, to the next emission of a kind."""
        body, after = step.body, self._successors[step]
        for target in body.steps:
            if target in after and kind in self._emission_kinds(target):
                between = self._count_calls(other for other in after if target in self._successors[other])
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
        """Extend a path out of a region, `up` regions outside the call: a loop adds its remaining iterations."""
        if owner.kind != "loop":
            return path
        remaining = RemainingIterations(up, tuple(sorted(self._count_calls(owner.inner[0].steps).items())))
        return replace(path, loops=(*path.loops, remaining))

    def _path_from_body(self, body: Body, kind: str, up: int | None, path: _PartialPath) -> _PartialPath:
        """Extend a path from the start of a body's next iteration (first if `up` is None) to an emission of a kind."""
        target = next(step for step in body.steps if kind in self._emission_kinds(step))
        before = self._count_calls(step for step in body.steps if target in self._successors[step])
        return self._path_through(target, kind, up, 2, path + before)

    def _path_through(self, target: Step, kind: str, up: int | None, offset: int, path: _PartialPath) -> _PartialPath:
        """Extend a path through a step that leads to an emission of a kind, up to the emission."""
        if target.kind == "emit":
            return path
        if target.inner:
            inner = next(
                body for body in target.inner if any(kind in self._emission_kinds(step) for step in body.steps)
            )
            return self._path_from_body(inner, kind, None, path)
        assert isinstance(target.node, ir.Put)
        consumers = self._consumers[target.node.stream]
        consumer = next(step for step in consumers if kind in self._emission_kinds(_enclosing_region(step)))
        path = self._add_window_fill(target, consumer, up, offset, path)
        region = _enclosing_region(consumer)
        return self._path_from_body(region.inner[0], kind, None, path) if region.inner else path

    def _add_window_fill(
        self, put: Step, consumer: Step, up: int | None, offset: int, path: _PartialPath
    ) -> _PartialPath:
        """Extend a path through a stream: the loop that fills it iterates until the next window is full."""
        node, owner = consumer.node, put.body.owner
        if owner is None or owner.kind != "loop":
            return path
        first, stride = (node.first, node.stride) if isinstance(node, ir.Windows) else (1, 1)
        total = self._count_calls(put.body.steps)
        if up is None:
            return path + CallCounts({key: count * (first - 1) for key, count in total.items()})
        until = RemainingIterations(up, tuple(sorted(total.items())), first, stride, offset)
        return replace(path, loops=(*path.loops, until))

    # ---------------------------------------------------------------- structure of the walk
    def _emission_kinds(self, step: Step) -> frozenset[str]:
        """Kinds emitted by a step, by steps inside it, and by readers of the streams that it fills."""
        known = self._kinds_by_step.get(step)
        if known is None:
            self._kinds_by_step[step] = frozenset()  # ends the recursion through cyclic streams
            kinds = set[str]()
            if isinstance(step.node, ir.Emit) and step.kind == "emit":
                kinds.add(step.node.kind)
            for inner in all_inner(step):
                kinds |= self._emission_kinds(inner)
            if isinstance(step.node, ir.Put):
                for consumer in self._consumers[step.node.stream]:
                    kinds |= self._emission_kinds(_enclosing_region(consumer))
            known = self._kinds_by_step[step] = frozenset(kinds)
        return known

    def _count_calls(self, steps: Iterable[Step]) -> CallCounts:
        """Calls in steps and inside them; a loop with a constant number of steps counts that often, others once."""
        counts = CallCounts()
        for step in steps:
            if isinstance(step.node, ir.Call):
                counts[self._key(step.node)] += 1
            for inner in step.inner:
                times = step.node.steps if isinstance(step.node, ir.Loop) and isinstance(step.node.steps, int) else 1
                counts += CallCounts({key: count * times for key, count in self._count_calls(inner.steps).items()})
        return counts

    def _find_successors(self, step: Step) -> None:
        """Find the later steps of the same body that depend on this one. Steps are visited last to first."""
        later = step.body.steps[step.index + 1 :]
        values = {*step.makes}
        successors = set[Step]()
        for candidate in later:
            if step.index in candidate.before or values & {*_used_values(candidate)}:
                successors |= {candidate} | self._successors[candidate]
        self._successors[step] = successors


def _enclosing_region(consumer: Step) -> Step:
    """Region in which a stream is read."""
    return consumer if consumer.inner else consumer.body.owner or consumer


def _used_values(step: Step) -> list[Val]:
    """Values that a step or the steps inside it use."""
    if step.kind not in REGIONS:
        return step.uses
    inside = [value for inner in all_inner(step) for value in inner.uses]
    inits = [carry.init for region in (step, *all_inner(step)) for carry in region.carries]
    return [*step.uses, *inside, *inits, *([step.control] if step.control is not None else [])]
