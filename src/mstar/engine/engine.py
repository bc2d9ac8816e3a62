"""Engine: runs one op for one batch of jobs, and isolates failures.

A failing request fails alone: states are rolled back, the faulty jobs are found by the rows that the op names or by
bisection, and the others run again. When memory runs out, the least recently used states are evicted; if that is not
enough, the batch is split. The engine knows no walks: the caller decides what shares a batch, and when.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mstar.engine.chunking import chunk_arguments, merge_chunks, split_budget
from mstar.engine.eviction import LruEviction
from mstar.engine.executor import BatchCall, Executor
from mstar.engine.jobs import UNFINISHED, Job, JobDone, JobFailed, Result
from mstar.engine.threads import use_threads
from mstar.engine.tracebacks import strip_traceback
from mstar.errors import NeverFits, OutOfPages, RowsFailed
from mstar.walk.batching import alone
from mstar.walk.component import Component, Op
from mstar.walk.states import State
from mstar.walk.values import inference_mode

if TYPE_CHECKING:
    from mstar.nn.device_timer import DeviceTimer

S = TypeVar("S", bound=State)
R = TypeVar("R")
MIN_CHUNK_POSITIONS = 16
"""Minimum positions per batch of a chunked op, whatever its time limit, so that it makes progress."""
COST_EMA_WEIGHT = 0.3
"""Weight of the newest batch in the moving average of the cost per position."""
_NO_ROWS = frozenset[int]()


class Engine:
    """Runs batches in the caller's thread. `max_batched_tokens` limits the positions per batch of a chunked op.

    The results of an op are checked against its annotation until a batch passes, and then in one of `check_interval`.
    """

    def __init__(
        self,
        *,
        max_batched_tokens: int | None = None,
        check_interval: int = 1,
        executor: Executor | None = None,
    ) -> None:
        if max_batched_tokens is not None and max_batched_tokens < 1:
            fix = "set at least 1, or None for no limit"
            raise ValueError(f"max_batched_tokens={max_batched_tokens} allows no batch\n  fix: {fix}")
        self.max_batched_tokens = max_batched_tokens
        self._executor = executor or Executor()
        self._timers: list[tuple[tuple[str, str], int, DeviceTimer]] = []
        """Op, number of positions and timer of the batches that a device has not finished."""
        self._position_cost_s: dict[tuple[str, str], float] = {}
        """Seconds per position of a chunked op, by component and op."""
        self.eviction = LruEviction()
        self._check_interval = check_interval
        self._batches = 0
        """Batches so far."""
        self._checked_ops: set[Op] = set()
        """Ops with a batch whose results were right."""

    def new_state(self, component: Component, kind: type[S], tenant: str = "") -> S:
        """Create a state of a component."""
        with inference_mode():
            state = self._executor.make_state(component, kind, tenant)
        self.eviction.touch(component, [state])
        return state

    def fork(self, state: S) -> S:
        """Fork a state: an independent copy."""
        with inference_mode():
            forked = self._executor.fork(state)
        if (owner := self.eviction.owner(state)) is not None:
            self.eviction.touch(owner, [forked])
        return forked

    def export(self, state: State, to: str = "") -> Any:
        """Content of a state as a value that can be sent. The state is restored first if it was evicted.

        Without the parts that were exported ahead for the worker `to`.
        """
        with inference_mode():
            if not state.is_resident and (owner := self.eviction.owner(state)) is not None:
                self._with_eviction(owner, [state], lambda: self._executor.restore(owner, state))
            return self._executor.export(state, to)

    def export_ahead(self, state: State, to: str) -> Any:
        """A part of a state that does not change any more, for the worker `to`; None if there is none."""
        with inference_mode():
            return self._executor.export_ahead(state, to)

    def load_ahead(self, component: Component, kind: type[State], exported: Any) -> None:
        """Keep a part of a state that another worker has exported ahead."""
        if component.threads is not None:
            use_threads(component.threads)
        with inference_mode():
            self._executor.load_ahead(component, kind, exported)

    def load(self, component: Component, kind: type[S], exported: Any, tenant: str | None = None) -> S:
        """Create a state from an export, which can lack its tenant.

        Raises OutOfPages if it does not fit after all others are evicted.
        """
        with inference_mode():
            state = self._with_eviction(
                component, [], lambda: self._executor.load_state(component, kind, exported, tenant)
            )
        self.eviction.touch(component, [state])
        return state

    def take_evicted(self) -> list[State]:
        """States evicted since the last call, in order of eviction."""
        return self.eviction.take_evicted()

    def _with_eviction(self, component: Component, pinned: list[State], allocate: Callable[[], R]) -> R:
        """Call `allocate`, evicting states other than `pinned` until it has enough pages."""
        if component.threads is not None:
            use_threads(component.threads)
        while True:
            try:
                return allocate()
            except NeverFits:
                raise
            except OutOfPages:
                if not self._evict_one(component, pinned):
                    raise

    def _evict_one(self, component: Component, pinned: list[State]) -> bool:
        """Evict the least recently used state of a component. Returns False if only `pinned` states are resident."""
        state = self.eviction.next_victim(component, pinned)
        if state is None:
            return False
        self._executor.evict(state)
        self.eviction.note_evicted(state)
        return True

    def run(self, component: Component, op: Op, jobs: Sequence[Job], *, time_limit_s: float = inf) -> list[Result]:
        """Run calls of one op with equal static arguments; returns a result per job.

        A chunked op is limited to about `time_limit_s` seconds. Raises DeviceFailed if no op can run any more.
        """
        if component.threads is not None:
            use_threads(component.threads)
        if jobs and not op.chunked and (len(jobs) == 1 or op.is_uniform):
            return self._run_group(component, op, list(jobs))
        return self._run_groups(component, op, jobs, time_limit_s)

    def _run_groups(self, component: Component, op: Op, jobs: Sequence[Job], time_limit_s: float) -> list[Result]:
        """Run calls in batches of those that can share one."""
        timer = self._start_timer(component) if op.chunked and component.device is not None else None
        started_at = time.perf_counter()
        results: list[Result] = [UNFINISHED] * len(jobs)
        keys = [*range(len(jobs))] if op.batch is alone else _batch_keys(op, jobs)
        groups, valid = _group_rows(keys), jobs
        if None in groups:
            for row in groups.pop(None):
                results[row] = JobFailed(strip_traceback(cast("Exception", keys[row])))
            valid = [job for job, key in zip(jobs, keys, strict=True) if not isinstance(key, Exception)]
        has_all = not op.chunked or split_budget(op, valid, self._token_budget(component, op, time_limit_s))
        for group in groups.values():
            rows = group
            if not has_all:  # an empty call must run once too
                rows = [row for row in group if jobs[row].end > jobs[row].done or jobs[row].end == jobs[row].length]
            with inference_mode():
                batch_results = self._run_batch(component, op, [jobs[row] for row in rows])
            for row, result in zip(rows, batch_results, strict=True):
                results[row] = result
        if op.chunked:
            name, count = (component.name, op.name), sum([job.chunk_length for job in valid])
            if timer is None:
                self._learn_cost(name, count, time.perf_counter() - started_at)
            else:
                self._learn_device_cost(name, count, timer)
        return results

    def _run_group(self, component: Component, op: Op, jobs: list[Job]) -> list[Result]:
        """Run one call, or calls of an op without tensors. They need not be grouped."""
        key = () if op.batch is alone else _batch_key(op, jobs[0])
        if isinstance(key, Exception):
            return [JobFailed(strip_traceback(key))]
        with inference_mode():
            return self._run_batch(component, op, jobs)

    def _token_budget(self, component: Component, op: Op, time_limit_s: float) -> int | None:
        """Maximum positions for a batch of this duration; None for no limit."""
        cost_s = self._position_cost_s.get((component.name, op.name))
        if cost_s is None or time_limit_s == inf:
            return self.max_batched_tokens
        positions = max(MIN_CHUNK_POSITIONS, int(time_limit_s / cost_s))
        return positions if self.max_batched_tokens is None else min(positions, self.max_batched_tokens)

    def _start_timer(self, component: Component) -> DeviceTimer | None:
        from mstar.nn.device_timer import start_timer  # imports torch

        return start_timer(component.device)

    def _learn_device_cost(self, name: tuple[str, str], count: int, timer: DeviceTimer) -> None:
        """Learn the costs of the batches that the device has finished. This one can be among them."""
        timer.stop()
        self._timers.append((name, count, timer))
        pending, self._timers = self._timers, []
        for one in pending:
            if (seconds := one[2].seconds()) is None:
                self._timers.append(one)
            else:
                self._learn_cost(*one[:2], seconds)

    def _learn_cost(self, name: tuple[str, str], count: int, seconds: float) -> None:
        if count:
            before = self._position_cost_s.get(name, seconds / count)
            self._position_cost_s[name] = before + COST_EMA_WEIGHT * (seconds / count - before)

    def _run_batch(self, component: Component, op: Op, jobs: list[Job]) -> list[Result]:
        """Run jobs that can share a batch. On failure, isolate the rows that the op named, or bisect."""
        if not jobs:
            return []
        states = changing = list[State]()
        if op.states:
            states = _distinct_states(jobs, op.states)
            extended = [name for name, is_extended in op.states.items() if is_extended]
            changing = states if len(extended) == len(op.states) else _distinct_states(jobs, extended)
            self.eviction.touch(component, states)
        is_checked = self._is_checked(op)
        try:
            call = BatchCall(op, *_columns(op, jobs), states, changing, is_checked)
        except Exception as error:  # noqa: BLE001 - a value that cannot be sliced belongs to one of the jobs
            outcome = error
        else:
            outcome = self._executor.run_batch(component, call)
            while isinstance(outcome, OutOfPages) and self._evict_one(component, states):
                outcome = self._executor.run_batch(component, call)
        if isinstance(outcome, list):
            self._checked_ops.add(op)
            if op.chunked:
                return [
                    JobDone(values) if job.is_whole else merge_chunks(op, job, values)
                    for job, values in zip(jobs, outcome, strict=True)
                ]
            return [JobDone(values) for values in outcome]
        strip_traceback(outcome)
        named = outcome.errors if isinstance(outcome, RowsFailed) else {}
        if len(jobs) == 1:
            return [JobFailed(named.get(0, outcome))]
        if suspects := [row for row in range(len(jobs)) if row in named]:
            return self._run_isolated(component, op, jobs, suspects)
        half = len(jobs) // 2
        return self._run_batch(component, op, jobs[:half]) + self._run_batch(component, op, jobs[half:])

    def _is_checked(self, op: Op) -> bool:
        """Whether the results of the next batch are checked."""
        self._batches += 1
        return not self._batches % self._check_interval or op not in self._checked_ops

    def _run_isolated(self, component: Component, op: Op, jobs: list[Job], suspects: list[int]) -> list[Result]:
        """Run each suspect alone: its failure in the batch can be caused by another job."""
        results: dict[int, Result] = {}
        for rows in ([row for row in range(len(jobs)) if row not in suspects], *([row] for row in suspects)):
            results |= zip(rows, self._run_batch(component, op, [jobs[row] for row in rows]), strict=True)
        return [results[row] for row in range(len(jobs))]


def _group_rows(keys: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Rows by their key, those with an error as key under None."""
    if keys and keys.count(keys[0]) == len(keys) and not isinstance(keys[0], Exception):  # most batches
        return {keys[0]: [*range(len(keys))]}
    groups: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(None if isinstance(key, Exception) else key, []).append(row)
    return groups


def _batch_keys(op: Op, jobs: Sequence[Job]) -> list[Hashable]:
    """Keys of all jobs, or their errors."""
    try:
        return [op.batch_key(job.arguments) for job in jobs]
    except Exception:  # noqa: BLE001 - which belongs to one of them
        return [_batch_key(op, job) for job in jobs]


def _batch_key(op: Op, job: Job) -> Hashable:
    """Key of the jobs that can share a batch with this one, or the error in its arguments."""
    try:
        return op.batch_key(job.arguments)
    except Exception as error:  # noqa: BLE001 - any failure belongs to this job
        return error


def _distinct_states(jobs: list[Job], names: Iterable[str]) -> list[State]:
    """States in these parameters, without duplicates."""
    arguments = [job.arguments.get(name) for name in names for job in jobs]
    return list({id(state): state for state in arguments if isinstance(state, State)}.values())


def _columns(op: Op, jobs: list[Job]) -> tuple[dict[str, list[Any]], int, frozenset[int]]:
    """Arguments of the current chunks of jobs by name, their number, and the rows with more chunks after these."""
    if len(jobs) == 1 and not op.chunked:
        return {name: [value] for name, value in jobs[0].arguments.items()}, 1, _NO_ROWS
    if op.chunked:
        rows = [job.arguments if job.is_whole else chunk_arguments(op, job) for job in jobs]
        unfinished = frozenset([row for row, job in enumerate(jobs) if job.end < job.length])
    else:
        rows, unfinished = [job.arguments for job in jobs], _NO_ROWS
    return {name: [row[name] for row in rows] for name in rows[0]}, len(jobs), unfinished
