"""What the tests of the engine share: ops that fail in every way, and a component whose memory is paged."""

from __future__ import annotations

import weakref
from itertools import pairwise
from typing import Any

import numpy as np

from mstar import (
    ONE_ROW,
    Component,
    Float,
    Float32,
    Int64,
    Layout,
    State,
    Static,
    Tensor,
    View,
    op,
    padded,
    ragged,
    rows,
    stacked,
)
from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone, JobFailed
from mstar.errors import RowsFailed
from mstar.nn.kv.page_pool import PagePool

POISON, GIVES_NAN, NAMES_ROW, FAILS_IN_BATCH = -1, -2, -3, -4
"""Faults of a row: the op raises, returns NaN for all rows, names the faulty row, or fails only in a larger batch."""


class Poison(Exception):
    """What a poisonous row makes an op raise."""


class NumberLog(State):
    """Every number that was read."""

    def __init__(self) -> None:
        self.seen: list[int] = []


class FailingOps(Component):
    """Ops that read numbers into notes and give their sums. They fail only after all notes have changed."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        """How many rows each run had."""

    def _read(self, parts: list[Any], notes: Any) -> Any:
        self.ran.append(len(parts))
        for part, own in zip(parts, rows(notes), strict=True):
            own.seen.extend(np.asarray(part).ravel().tolist())
        has = [set(np.asarray(part).ravel().tolist()) for part in parts]
        named = {row: error for row, part in enumerate(has) if (error := _hook_error(part)) is not None}
        if named:
            raise RowsFailed(named)
        if any(POISON in part for part in has):
            raise Poison(f"{POISON} was read")
        if len(parts) > 1 and any(FAILS_IN_BATCH in part for part in has):
            raise Poison("it does not like company")
        sums = np.array([sum(own.seen) for own in rows(notes)], np.float32)
        return sums * np.float32("nan") if any(GIVES_NAN in part for part in has) else sums

    @op
    def lone(self, x: Int64[Tensor, "T"], notes: NumberLog) -> Float32[Tensor, ""]:
        return self._read([x], [notes])[0]

    @op(batch=stacked)
    def stack(self, x: Int64[Tensor, "T"], notes: NumberLog) -> Float32[Tensor, ""]:
        return self._read(list(x), notes)

    @op(batch=ragged("T"))
    def rag(self, x: Int64[Tensor, "T"], notes: NumberLog, layout: Layout = ONE_ROW) -> Float32[Tensor, ""]:
        return self._read([x[start:end] for start, end in pairwise(layout.offsets)], notes)

    @op(batch=padded("T"))
    def pad(self, x: Int64[Tensor, "T"], notes: NumberLog, layout: Layout = ONE_ROW) -> Float32[Tensor, ""]:
        return self._read([row[:length] for row, length in zip(x, layout.lengths, strict=True)], notes)

    @op(batch=stacked)
    def scale(self, x: Float[Tensor, "T"], by: Static[int] = 2) -> Float[Tensor, "T"]:
        self.ran.append(len(x))
        return x * by

    @op(batch=stacked)
    def look(self, notes: View[NumberLog]) -> int:
        return [sum(own.seen) for own in rows(notes)]


def _hook_error(part: set[int]) -> Exception | None:
    """What a hook of a request raised."""
    try:
        if NAMES_ROW in part:
            raise Poison(f"the hook saw {NAMES_ROW}")
    except Poison as error:
        return error
    return None


STYLES = ("lone", "stack", "rag", "pad")


# ---------------------------------------------------------------- paged memory
class PagedLog(State):
    """Numbers in pages of their component; on the host while it is away."""

    is_evictable = True

    def __init__(self, owner: PagedComponent, table: Any, host: list[int] | None = None) -> None:
        owner.created += 1
        self.number = owner.created
        self.owner = owner
        self.table = table
        self.host = host
        """What was in the pages, while it is away."""
        self._finalizer = weakref.finalize(self, owner.pool.free, table)

    @property
    def is_resident(self) -> bool:
        return self.host is None

    def values(self) -> list[int]:
        flat = self.owner.memory[self.table.pages].reshape(-1)
        return flat[: self.table.length].tolist()

    def append(self, numbers: list[int]) -> None:
        pool = self.owner.pool
        start = self.table.length
        for source, target in pool.extend(self.table, len(numbers)):
            self.owner.memory[target] = self.owner.memory[source]
        for position, number in enumerate(numbers, start):
            self.owner.memory[self.table.pages[position // pool.page_size], position % pool.page_size] = number

    def fork(self) -> PagedLog:
        if self.host is not None:
            return PagedLog(self.owner, self.owner.pool.new_table(), [*self.host])
        return PagedLog(self.owner, self.owner.pool.fork(self.table))

    def snapshot(self) -> int:
        return self.table.length

    def rollback(self, snapshot: int) -> None:
        self.owner.pool.truncate(self.table, snapshot)

    def export(self) -> list[int]:
        return self.values()

    def evict(self) -> None:
        self.host = self.values()
        self.owner.pool.truncate(self.table, 0)
        self.owner.evicted.append(self.number)


class PagedComponent(Component):
    """Reads numbers into few pages. Everything it gives depends on all that was read, and on the order."""

    def __init__(self, pages: int, page_size: int = 2) -> None:
        self.pool = PagePool(pages, page_size)
        self.memory = np.full((pages, page_size), -9, np.int64)
        self.created = 0
        self.evicted: list[int] = []
        """The numbers of the states that had to leave, in order."""
        self.batch_positions: list[int] = []
        """How many positions each run of `read` brought."""

    def make_state(self, kind: Any) -> Any:
        return PagedLog(self, self.pool.new_table())

    def load_state(self, kind: Any, exported: list[int]) -> Any:
        self.pool.require_capacity(-(-len(exported) // self.pool.page_size))
        state = self.make_state(kind)
        state.append(exported)
        return state

    def restore(self, states: list[Any]) -> None:
        tables, lengths = [state.table for state in states], [len(state.host) for state in states]
        self.pool.require_free(sum(self.pool.pages_needed(tables, lengths)))
        for state in states:
            numbers, state.host = state.host, None
            state.append(numbers)

    @op(batch=ragged("T"), chunked=True)
    def read(
        self, x: Int64[Tensor, "T"], notes: PagedLog, layout: Layout = ONE_ROW
    ) -> tuple[Int64[Tensor, "1"], Int64[Tensor, "T"], Float32[Tensor, ""]]:
        """A digest of all numbers read so far, one per new number, and NaN for an unfinished row."""
        states = list(rows(notes))
        self.pool.require_free(sum(self.pool.pages_needed([state.table for state in states], layout.lengths)))
        self.batch_positions.append(len(x))
        each: list[int] = []
        for state, (start, end) in zip(states, pairwise(layout.offsets), strict=True):
            for number in x[start:end].tolist():
                state.append([number])
                each.append(digest(state.values()))
            if POISON in x[start:end]:
                raise Poison(f"{POISON} was read")
        last = [[digest(state.values())] for state in states]
        is_unfinished = [row in layout.unfinished for row in range(layout.rows)]
        return np.array(last), np.array(each, np.int64), np.where(is_unfinished, np.nan, 1).astype(np.float32)

    @op(batch=stacked)
    def look(self, notes: View[PagedLog]) -> int:
        return [digest(state.values()) for state in rows(notes)]


def digest(numbers: list[int]) -> int:
    total = 7
    for number in numbers:
        total = (total * 31 + number + 3) % 1_000_003
    return total


# ---------------------------------------------------------------- running
def int_array(*values: int) -> Any:
    return np.array(values, np.int64)


def run(component: Component, name: str, *calls: dict[str, Any], engine: Engine | None = None) -> list[Any]:
    the_op = component.ops()[name]
    jobs = [Job(the_op.bind(component, (), call)) for call in calls]
    return (engine or Engine()).run(component, the_op, jobs)


def run_to_completion(engine: Engine, component: Component, name: str, jobs: list[Job]) -> list[Any]:
    """Hand jobs in until all are finished; what came of each."""
    the_op = component.ops()[name]
    results: dict[Job, Any] = {}
    while waiting := [job for job in jobs if job not in results]:
        before = sum(job.done for job in waiting)
        given = zip(waiting, engine.run(component, the_op, waiting), strict=True)
        over = {job: result for job, result in given if isinstance(result, JobDone | JobFailed)}
        results |= over
        assert over or sum(job.done for job in waiting) > before, "nothing moved"
    return [results[job] for job in jobs]


def to_comparable(result: Any) -> Any:
    """A result as something with ==."""
    if isinstance(result, JobDone):
        return [np.asarray(value).tolist() for value in result.values]
    return repr(result.error) if isinstance(result, JobFailed) else result
