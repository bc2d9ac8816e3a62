"""A book of costs: what the calls of a model gave and took, written down once, so that the model can be rehearsed.

A call is known again by what matters of its arguments and by all that went into its states. A book is not kept: it
holds for one machine, and as long as nothing else runs there.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from math import inf
from operator import mul
from statistics import fmean
from typing import Any

from mstar.config import Options
from mstar.engine.engine import LEAST
from mstar.engine.engine import Engine as RealEngine
from mstar.engine.jobs import UNFINISHED, Done, Job, Result
from mstar.engine.pieces import share_out
from mstar.errors import MstarError
from mstar.plan.compile import plan
from mstar.plan.deployment import Deployed
from mstar.plan.tables import BatchKey
from mstar.server.front import digest
from mstar.sim.rehearsal import HOP, Arrival, Receipt, Rehearsal
from mstar.walk.batching import alone
from mstar.walk.component import Component, Op
from mstar.walk.model import Model
from mstar.wire.pace import Pace
from mstar.worker.commands import Batch, Cargo, Command, Export, Exported, Fork, Free, Load, Make, Ran, StateRef
from mstar.worker.costs import Costs
from mstar.worker.engine_room import EngineRoom, Report
from mstar.worker.order import Order

Matters = Callable[[str, Mapping[str, Any]], Hashable | None]
"""What decides what a call gives and takes, of its op ("component.op") and its arguments without states. None if it is
too various to be written down: then it is run for real, so it has to be cheap, and takes what the op usually takes."""
Call = tuple[BatchKey, Hashable | None, tuple[int, ...]]
"""An op, what matters of its arguments, and what went into its states."""
Timed = tuple[list[Call], float]
"""A batch, and how many seconds it took."""
REPEATS = 3
"""So often each call is timed."""
CROWDS = (2, 4, 8, 16)
"""So many requests at once show what it gains that calls share a batch."""
MODEL = "model"


class NotRecorded(MstarError):
    """A rehearsal has come to a call that is not in its book, or a book could not be written."""


def everything(op: str, arguments: Mapping[str, Any]) -> Hashable:  # noqa: ARG001 - as every `Matters`
    """All arguments matter."""
    return digest(dict(arguments))


@dataclass(slots=True)
class Book:
    """What the calls of one model give and take."""

    ops: Mapping[BatchKey, tuple[Component, Op]]
    matters: Matters
    gave: dict[Call, tuple[Any, ...]] = field(default_factory=dict[Call, tuple[Any, ...]])
    seconds: Mapping[Call, float] = field(default_factory=dict[Call, float])
    """Of each call by itself."""
    usual: Mapping[BatchKey, float] = field(default_factory=dict[BatchKey, float])
    """Of any call of an op by itself."""
    crowds: Costs = field(default_factory=Costs)
    """How many times as long as a single call a batch takes, by its op and how many share it."""

    def run(self, call: Call, job: Job) -> Done:
        """What a call gives."""
        key, what, _ = call
        if what is None:
            component, op = self.ops[key]
            return Done(op.run(component, {name: [value] for name, value in job.arguments.items()}, 1)[0])
        return Done(self.gave[call])

    def time(self, calls: Sequence[Call], parts: Iterable[float] = repeat(1.0)) -> float:
        """How long a batch takes in which so much of each call is run."""
        key, count = calls[0][0], len(calls)
        total = sum(map(mul, map(self._alone, calls), parts))
        return total * (self.crowds.of((str(key), 0), count) or count) / count

    def _alone(self, call: Call) -> float:
        key, what, _ = call
        if what is None:
            return self.usual[key]
        if call not in self.seconds:
            fix = "record an ask that makes this call, or have `matters` leave out what differs"
            raise NotRecorded(f"{key} was not recorded with {what!r:.200}\n  fix: {fix}")
        return self.seconds[call]

    def bind(self, single: Sequence[Timed], shared: Sequence[Timed]) -> None:
        """Take down how long batches took: those of one request at a time, and those of crowds."""
        by_call, by_key = defaultdict[Call, list[float]](list), defaultdict[BatchKey, list[float]](list)
        for calls, seconds in single:
            for call in calls:
                by_call[call].append(seconds / len(calls))
                by_key[call[0]].append(seconds / len(calls))
        self.seconds = {call: fmean(found) for call, found in by_call.items()}
        self.usual = {key: fmean(found) for key, found in by_key.items()}
        times = defaultdict[tuple[BatchKey, int], list[tuple[float, float]]](list)
        for calls, seconds in shared:
            if len(calls) > 1 and self.ops[calls[0][0]][1].batch is not alone:
                times[calls[0][0], len(calls)].append((seconds, self.time(calls)))
        for (key, count), found in times.items():
            together, apart = map(sum, zip(*found, strict=True))
            self.crowds.learn((str(key), 0), 1, 1.0)
            self.crowds.learn((str(key), 0), count, count * together / apart)


class ByBook:
    """The engine of one worker that gives what is in books.

    Of a state it has a number that stands for all that went into it. Of calls in pieces it runs as much at a time as a
    real engine would.
    """

    def __init__(self, books: Mapping[str, Book], token_budget: int | None = None) -> None:
        self.states: dict[int, int] = {}
        self._books = books
        self._token_budget = token_budget

    def execute(self, command: Command) -> Ran | Exported | None:
        """Execute a command."""
        match command:
            case Batch():
                return self._batch(command)
            case Make():
                self._keep(command.state, hash((command.component, command.kind)))
            case Fork():
                self._keep(command.copy, self.states[command.state])
            case Load():
                self._keep(command.state, command.cargo.data)
            case Export():
                return Exported(command.ticket, Cargo("", "", self.states[command.state]))
            case Free():
                for number in command.states:
                    del self.states[number]
        return None

    def perform(self, batch: Batch, book: Book, calls: list[Call]) -> Ran:
        """Run a batch: look it up."""
        jobs, op, whole = batch.jobs, book.ops[batch.key][1], book.time(calls)
        if op.in_pieces:
            positions = sum(op.length(job.arguments) for job in jobs)
            budget = self._token_budget or positions
            able = positions if whole <= batch.allowed else max(LEAST, int(positions * batch.allowed / whole))
            share_out(op, jobs, min(budget, able))
        results: list[Result] = []
        for call, job in zip(calls, jobs, strict=True):
            job.done = job.end
            results.append(book.run(call, job) if job.end == job.length else UNFINISHED)
        parts = [job.ran / job.length if job.length else 1.0 for job in jobs]
        return Ran(batch.number, results, book.time(calls, parts))

    def _keep(self, number: int, past: int) -> None:
        assert number not in self.states, f"state {number} is made twice"
        self.states[number] = past

    def _batch(self, batch: Batch) -> Ran:
        book, key = self._books[batch.model], batch.key
        calls = [self._call(key, job, book.matters) for job in batch.jobs]
        ran = self.perform(batch, book, calls)
        extended = [name for name, is_extended in book.ops[key][1].states.items() if is_extended]
        for call, job, result in zip(calls, batch.jobs, ran.results, strict=True):
            for name in extended if isinstance(result, Done) else ():
                if isinstance(ref := job.arguments.get(name), StateRef):
                    self.states[ref.number] = hash((call, name))
        return ran

    def _call(self, key: BatchKey, job: Job, matters: Matters) -> Call:
        plain, pasts = dict[str, Any](), list[int]()
        for name, value in job.arguments.items():
            if isinstance(value, StateRef):
                pasts.append(self.states[value.number])
            else:
                plain[name] = value
        what = matters(f"{key.component}.{key.op}", plain)
        if what is None and pasts:
            fix = "say what matters of its calls"
            raise NotRecorded(f"{key} uses a state, so it cannot be run for real in a rehearsal\n  fix: {fix}")
        return key, what, tuple(pasts)


def rehearse(
    deployed: Mapping[str, Deployed],
    books: Mapping[str, Book],
    arrivals: Iterable[Arrival],
    *,
    options: Options | None = None,
    order: Order | None = None,
    hop_s: float = HOP,
) -> list[Receipt]:
    """What clients would get if these requests came to a deployment of these models."""
    options = options or Options()
    engine = partial(ByBook, books, options.token_budget)
    return Rehearsal(deployed, engine, options=options, order=order, hop_s=hop_s).play(arrivals)


# ---------------------------------------------------------------- writing it
@dataclass(frozen=True, slots=True)
class _Ask:
    """One who comes at once."""

    ask: Any
    at: float = 0.0
    model: str = MODEL
    pace: Pace = field(default_factory=Pace)


class Recorder(ByBook):
    """Runs everything for real, and writes down what it gave and how long it took."""

    def __init__(self, model: Model, book: Book) -> None:
        super().__init__({MODEL: book})
        self.timed: list[Timed] = []
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self.room = EngineRoom({MODEL: model}, RealEngine(), self._reports.put, threading.Lock())

    def execute(self, command: Command) -> Ran | Exported | None:
        """Execute a command, with the real states too."""
        if not isinstance(command, Batch):
            self.room.submit([command], is_patient=False)
        return super().execute(command)

    def perform(self, batch: Batch, book: Book, calls: list[Call]) -> Ran:
        """Run a batch. What a call gave the first time it gives again: rounding must not lead elsewhere."""
        self.room.submit([replace(batch, allowed=inf)], is_patient=False)
        ran = self._reports.get()
        assert isinstance(ran, Ran)
        self.timed.append((calls, ran.seconds))
        for call, result in zip(calls, ran.results, strict=True):
            if isinstance(result, Done) and call[1] is not None:
                result.values = book.gave.setdefault(call, result.values)
        return ran


def record(model: Model, asks: Sequence[Any], matters: Matters = everything) -> Book:
    """Serve asks for real, one by one and, if calls can share batches, in crowds; what their calls gave and took."""
    components = model.components()
    for component in components.values():
        component.prepare()
    deployed = {MODEL: Deployed(model, plan(model.graphs()))}
    keys = deployed[MODEL].plans.keys
    book = Book({key: (components[key.component], components[key.component].ops()[key.op]) for key in keys}, matters)

    def serve(asks: Iterable[Any]) -> list[Timed]:
        recorder = Recorder(model, book)
        recorder.room.start()
        try:
            receipts = Rehearsal(deployed, lambda: recorder).play(map(_Ask, asks))
        finally:
            recorder.room.stop()
        if failed := [receipt.status for receipt in receipts if receipt.status != "ok"]:
            fix = "record asks that end well"
            raise NotRecorded(f"{len(failed)} of {len(receipts)} asks ended {failed[0]}\n  fix: {fix}")
        return recorder.timed

    for ask in asks:
        serve([ask])  # the first time of everything takes longer
    single = [batch for _ in range(REPEATS) for ask in asks for batch in serve([ask])]
    shared = list[Timed]()
    if any(op.batch is not alone for _, op in book.ops.values()):
        shared = [batch for crowd in CROWDS for batch in serve([asks[i % len(asks)] for i in range(crowd)])]
    book.bind(single, shared)
    return book
