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

from mstar.engine.chunking import chunk_arguments, merge_chunks, split_budget
from mstar.engine.eviction import LruEviction
from mstar.engine.jobs import UNFINISHED, Job, JobDone, JobFailed, Result
from mstar.engine.threads import use_threads
from mstar.engine.tracebacks import strip_traceback
from mstar.errors import NeverFits, OutOfPages, RowsFailed
from mstar.walk.batching import alone
from mstar.walk.component import Component, Op
from mstar.walk.states import State

S = TypeVar("S", bound=State)
R = TypeVar("R")
MIN_CHUNK_POSITIONS = 16
"""So many positions a run of an op `in_pieces` brings, however little time it has: else it would never end."""
COST_EMA_WEIGHT = 0.3
"""How much the newest run counts in what a position is thought to cost."""


class Engine:
    """Runs batches in this thread. `token_budget` is how many positions a run of an op `in_pieces` may bring."""

    def __init__(self, *, max_batched_tokens: int | None = None) -> None:
        if max_batched_tokens is not None and max_batched_tokens < 1:
            fix = "give at least 1, or None for no limit"
            raise ValueError(f"max_batched_tokens={max_batched_tokens} lets nothing run\n  fix: {fix}")
        self.max_batched_tokens = max_batched_tokens
        self._position_cost_s: dict[tuple[str, str], float] = {}
        """What a position of an op `in_pieces` takes, by component and op."""
        self._eviction = LruEviction()

    def new_state(self, component: Component, kind: type[S]) -> S:
        """A fresh state of a component."""
        state = component.make_state(kind)
        self._eviction.touch(component, [state])
        return state

    def fork(self, state: S) -> S:
        """A copy of a state that goes its own way."""
        forked = state.fork()
        if (owner := self._eviction.owner(state)) is not None:
            self._eviction.touch(owner, [forked])
        return forked

    def export(self, state: State) -> Any:
        """All of a state as a value that can be sent. The state stays."""
        if not state.is_resident and (owner := self._eviction.owner(state)) is not None:
            self._with_eviction(owner, [state], lambda: owner.restore([state]))
        return state.export()

    def load(self, component: Component, kind: type[S], exported: Any) -> S:
        """A state of what was exported. Raises OutOfPages if it does not fit even when all others have left."""
        state = self._with_eviction(component, [], lambda: component.load_state(kind, exported))
        self._eviction.touch(component, [state])
        return state

    def take_evicted(self) -> list[State]:
        """The states that had to leave to make room since this was last asked, in that order."""
        return self._eviction.take_evicted()

    def _with_eviction(self, component: Component, pinned: list[State], act: Callable[[], R]) -> R:
        """Do something that needs pages, and let others leave for it."""
        if component.threads is not None:
            use_threads(component.threads)
        while True:
            try:
                return act()
            except NeverFits:
                raise
            except OutOfPages:
                if not self._eviction.evict_one(component, pinned):
                    raise

    def run(self, component: Component, op: Op, jobs: Sequence[Job], *, time_limit_s: float = inf) -> list[Result]:
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
            key = row if op.batch is alone else _batch_key(op, job)
            if isinstance(key, Exception):
                results[row] = JobFailed(strip_traceback(key))
            else:
                groups.setdefault(key, []).append(row)
                sound.append(job)
        if op.chunked:
            split_budget(op, sound, self._token_budget(component, op, time_limit_s))
        for group in groups.values():
            rows = group
            if op.chunked:  # one that is empty from the start also has to run
                rows = [row for row in group if jobs[row].end > jobs[row].done or jobs[row].end == jobs[row].length]
            for row, result in zip(rows, self._run_batch(component, op, [jobs[row] for row in rows]), strict=True):
                results[row] = result
        if op.chunked:
            self._learn_cost(component, op, sound, time.perf_counter() - begun)
        return results

    def _token_budget(self, component: Component, op: Op, time_limit_s: float) -> int | None:
        """How many positions may be run in so many seconds."""
        each = self._position_cost_s.get((component.name, op.name))
        if each is None or time_limit_s == inf:
            return self.max_batched_tokens
        able = max(MIN_CHUNK_POSITIONS, int(time_limit_s / each))
        return able if self.max_batched_tokens is None else min(able, self.max_batched_tokens)

    def _learn_cost(self, component: Component, op: Op, jobs: Sequence[Job], seconds: float) -> None:
        count = sum(job.chunk_length for job in jobs)
        if count:
            name = (component.name, op.name)
            before = self._position_cost_s.get(name, seconds / count)
            self._position_cost_s[name] = before + COST_EMA_WEIGHT * (seconds / count - before)

    def _run_batch(self, component: Component, op: Op, jobs: list[Job]) -> list[Result]:
        """The same for jobs that can share a batch."""
        if not jobs:
            return []
        states = _distinct_states(jobs, op.states)
        extended = [name for name, is_extended in op.states.items() if is_extended]
        changing = states if len(extended) == len(op.states) else _distinct_states(jobs, extended)
        self._eviction.touch(component, states)
        outcome = _try_batch(component, op, jobs, states, changing)
        while isinstance(outcome, OutOfPages) and self._eviction.evict_one(component, states):
            outcome = _try_batch(component, op, jobs, states, changing)
        if isinstance(outcome, list):
            if op.chunked:
                return [merge_chunks(op, job, values) for job, values in zip(jobs, outcome, strict=True)]
            return [JobDone(values) for values in outcome]
        strip_traceback(outcome)
        named = outcome.errors if isinstance(outcome, RowsFailed) else {}
        if len(jobs) == 1:
            return [JobFailed(named.get(0, outcome))]
        if suspects := [row for row in range(len(jobs)) if row in named]:
            return self._run_isolated(component, op, jobs, suspects)
        half = len(jobs) // 2
        return self._run_batch(component, op, jobs[:half]) + self._run_batch(component, op, jobs[half:])

    def _run_isolated(self, component: Component, op: Op, jobs: list[Job], suspects: list[int]) -> list[Result]:
        """The same with each suspect by itself: what it does in company may be another's fault."""
        found: dict[int, Result] = {}
        for rows in ([row for row in range(len(jobs)) if row not in suspects], *([row] for row in suspects)):
            found |= zip(rows, self._run_batch(component, op, [jobs[row] for row in rows]), strict=True)
        return [found[row] for row in range(len(jobs))]


def _batch_key(op: Op, job: Job) -> Hashable:
    """With whom a job may share a batch, or what is wrong with its arguments."""
    try:
        return op.batch_key(job.arguments)
    except Exception as error:  # noqa: BLE001 - any failure is this job's
        return error


def _distinct_states(jobs: list[Job], names: Iterable[str]) -> list[State]:
    """The states that these parameters hold, each once."""
    given = [job.arguments.get(name) for name in names for job in jobs]
    return list({id(state): state for state in given if isinstance(state, State)}.values())


def _try_batch(
    component: Component, op: Op, jobs: list[Job], states: list[State], changing: list[State]
) -> list[tuple[Any, ...]] | Exception:
    """Run jobs as one batch; what they gave, or the exception, after which their states are what they were."""
    marks: list[tuple[State, Any]] = []
    try:
        if absent := [state for state in states if not state.is_resident]:
            component.restore(absent)
        marks = [(state, state.snapshot()) for state in changing]
        rows, unfinished = [job.arguments for job in jobs], frozenset[int]()
        if op.chunked:
            rows = [chunk_arguments(op, job) for job in jobs]
            unfinished = frozenset([row for row, job in enumerate(jobs) if job.end < job.length])
        return op.run(component, {name: [row[name] for row in rows] for name in rows[0]}, len(jobs), unfinished)
    except Exception as error:  # noqa: BLE001 - whatever a request makes an op raise ends that request only
        for state, mark in marks:
            state.rollback(mark)
        return error
