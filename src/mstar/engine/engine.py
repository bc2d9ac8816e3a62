"""The engine: one op for one batch of jobs, and what is done when that goes wrong.

A request that fails does so alone: states go back to where they were, the jobs at fault are found, the others run
again. When memory runs out, states that were not used for long leave; when that is not enough, the batch is run in
parts. The engine knows no walks: who shares a batch, and when, is decided by whoever calls it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import inf
from typing import Any, TypeVar

from mstar.engine.frameless import frameless
from mstar.engine.jobs import UNFINISHED, Done, Failed, Job, Result
from mstar.engine.pieces import piece_of, put_together, share_out
from mstar.engine.residents import Residents
from mstar.engine.threads import use_threads
from mstar.errors import RowsFailed
from mstar.nn.pages import NeverFits, OutOfPages
from mstar.walk.batching import alone
from mstar.walk.component import Component, Op
from mstar.walk.states import State

S = TypeVar("S", bound=State)
R = TypeVar("R")
LEAST = 16
"""So many positions a run of an op `in_pieces` brings, however little time it has: else it would never end."""
WEIGHT = 0.3
"""How much the newest run counts in what a position is thought to cost."""


class Engine:
    """Runs batches in this thread. `token_budget` is how many positions a run of an op `in_pieces` may bring."""

    def __init__(self, *, token_budget: int | None = None) -> None:
        if token_budget is not None and token_budget < 1:
            fix = "give at least 1, or None for no limit"
            raise ValueError(f"token_budget={token_budget} lets nothing run\n  fix: {fix}")
        self.token_budget = token_budget
        self._seconds: dict[tuple[str, str], float] = {}
        """What a position of an op `in_pieces` takes, by component and op."""
        self._residents = Residents()

    def new_state(self, component: Component, kind: type[S]) -> S:
        """A fresh state of a component."""
        state = component.make_state(kind)
        self._residents.use(component, [state])
        return state

    def fork(self, state: S) -> S:
        """A copy of a state that goes its own way."""
        forked = state.fork()
        if (owner := self._residents.owner(state)) is not None:
            self._residents.use(owner, [forked])
        return forked

    def export(self, state: State) -> Any:
        """All of a state as a value that can be sent. The state stays."""
        if not state.is_resident and (owner := self._residents.owner(state)) is not None:
            self._with_room(owner, [state], lambda: owner.bring_back([state]))
        return state.export()

    def load(self, component: Component, kind: type[S], exported: Any) -> S:
        """A state of what was exported. Raises OutOfPages if it does not fit even when all others have left."""
        state = self._with_room(component, [], lambda: component.load_state(kind, exported))
        self._residents.use(component, [state])
        return state

    def take_evicted(self) -> list[State]:
        """The states that had to leave to make room since this was last asked, in that order."""
        return self._residents.take_evicted()

    def _with_room(self, component: Component, staying: list[State], act: Callable[[], R]) -> R:
        """Do something that needs pages, and let others leave for it."""
        if component.threads is not None:
            use_threads(component.threads)
        while True:
            try:
                return act()
            except NeverFits:
                raise
            except OutOfPages:
                if not self._residents.make_room(component, staying):
                    raise

    def run(self, component: Component, op: Op, jobs: Sequence[Job], *, seconds: float = inf) -> list[Result]:
        """Run calls of one op whose static arguments are equal; what came of each, in the same order.

        What can be run in pieces is to take no more than so many seconds.
        """
        begun = time.perf_counter()
        if component.threads is not None:
            use_threads(component.threads)
        results: list[Result] = [UNFINISHED] * len(jobs)
        groups: dict[Hashable, list[int]] = {}
        sound: list[Job] = []
        for row, job in enumerate(jobs):
            key = row if op.batch is alone else _alike(op, job)
            if isinstance(key, Exception):
                results[row] = Failed(frameless(key))
            else:
                groups.setdefault(key, []).append(row)
                sound.append(job)
        if op.in_pieces:
            share_out(op, sound, self._budget(component, op, seconds))
        for group in groups.values():
            rows = group
            if op.in_pieces:  # one that is empty from the start also has to run
                rows = [row for row in group if jobs[row].end > jobs[row].done or jobs[row].end == jobs[row].length]
            for row, result in zip(rows, self._run_alike(component, op, [jobs[row] for row in rows]), strict=True):
                results[row] = result
        if op.in_pieces:
            self._learn(component, op, sound, time.perf_counter() - begun)
        return results

    def _budget(self, component: Component, op: Op, seconds: float) -> int | None:
        """How many positions may be run in so many seconds."""
        each = self._seconds.get((component.name, op.name))
        if each is None or seconds == inf:
            return self.token_budget
        able = max(LEAST, int(seconds / each))
        return able if self.token_budget is None else min(able, self.token_budget)

    def _learn(self, component: Component, op: Op, jobs: Sequence[Job], seconds: float) -> None:
        count = sum(job.ran for job in jobs)
        if count:
            name = (component.name, op.name)
            before = self._seconds.get(name, seconds / count)
            self._seconds[name] = before + WEIGHT * (seconds / count - before)

    def _run_alike(self, component: Component, op: Op, jobs: list[Job]) -> list[Result]:
        """The same for jobs that can share a batch."""
        if not jobs:
            return []
        states = _states(jobs, op.states)
        extended = [name for name, is_extended in op.states.items() if is_extended]
        changing = states if len(extended) == len(op.states) else _states(jobs, extended)
        self._residents.use(component, states)
        outcome = _try(component, op, jobs, states, changing)
        while isinstance(outcome, OutOfPages) and self._residents.make_room(component, states):
            outcome = _try(component, op, jobs, states, changing)
        if isinstance(outcome, list):
            if op.in_pieces:
                return [put_together(op, job, values) for job, values in zip(jobs, outcome, strict=True)]
            return [Done(values) for values in outcome]
        frameless(outcome)
        named = outcome.errors if isinstance(outcome, RowsFailed) else {}
        if len(jobs) == 1:
            return [Failed(named.get(0, outcome))]
        if suspects := [row for row in range(len(jobs)) if row in named]:
            return self._run_apart(component, op, jobs, suspects)
        half = len(jobs) // 2
        return self._run_alike(component, op, jobs[:half]) + self._run_alike(component, op, jobs[half:])

    def _run_apart(self, component: Component, op: Op, jobs: list[Job], suspects: list[int]) -> list[Result]:
        """The same with each suspect by itself: what it does in company may be another's fault."""
        found: dict[int, Result] = {}
        for rows in ([row for row in range(len(jobs)) if row not in suspects], *([row] for row in suspects)):
            found |= zip(rows, self._run_alike(component, op, [jobs[row] for row in rows]), strict=True)
        return [found[row] for row in range(len(jobs))]


def _alike(op: Op, job: Job) -> Hashable:
    """With whom a job may share a batch, or what is wrong with its arguments."""
    try:
        return op.alike(job.arguments)
    except Exception as error:  # noqa: BLE001 - any failure is this job's
        return error


def _states(jobs: list[Job], names: Iterable[str]) -> list[State]:
    """The states that these parameters hold, each once."""
    given = [job.arguments.get(name) for name in names for job in jobs]
    return list({id(state): state for state in given if isinstance(state, State)}.values())


def _try(
    component: Component, op: Op, jobs: list[Job], states: list[State], changing: list[State]
) -> list[tuple[Any, ...]] | Exception:
    """Run jobs as one batch; what they gave, or the exception, after which their states are what they were."""
    marks: list[tuple[State, Any]] = []
    try:
        if absent := [state for state in states if not state.is_resident]:
            component.bring_back(absent)
        marks = [(state, state.mark()) for state in changing]
        rows, unfinished = [job.arguments for job in jobs], frozenset[int]()
        if op.in_pieces:
            rows = [piece_of(op, job) for job in jobs]
            unfinished = frozenset([row for row, job in enumerate(jobs) if job.end < job.length])
        return op.run(component, {name: [row[name] for row in rows] for name in rows[0]}, len(jobs), unfinished)
    except Exception as error:  # noqa: BLE001 - whatever a request makes an op raise ends that request only
        for state, mark in marks:
            state.go_back(mark)
        return error
