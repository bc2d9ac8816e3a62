"""Engines of workers in virtual time: a state is represented by its history, everything that was written to it.

`call_trace` and `profile_replay` look up the outputs and the cost of a call by these histories. To record them, a
`RealEngineMirror` executes the same commands on a real engine.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from dataclasses import replace
from math import inf
from typing import Generic, Self, TypeVar

from mstar.engine.chunking import split_budget
from mstar.engine.engine import MIN_CHUNK_POSITIONS
from mstar.engine.engine import Engine as RealEngine
from mstar.walk.component import Op
from mstar.walk.model import Model
from mstar.worker.commands import (
    Batch,
    BatchFinished,
    Command,
    CreateState,
    Export,
    ExportedState,
    ExportFinished,
    Fork,
    Free,
    LoadState,
)
from mstar.worker.engine_thread import EngineThread, Report

H = TypeVar("H")


class VirtualEngine(ABC, Generic[H]):
    """Engine of one worker. Only batches take time."""

    def __init__(self) -> None:
        self.states: dict[int, H] = {}
        """History of each state."""

    @abstractmethod
    def new_history(self, component: str, kind: str) -> H:
        """History of a new state."""

    @abstractmethod
    def execute_batch(self, batch: Batch) -> BatchFinished:
        """Look up the outputs and the cost of a batch."""

    def execute(self, command: Command) -> BatchFinished | ExportFinished | None:
        """Execute a command."""
        match command:
            case Batch():
                return self.execute_batch(command)
            case CreateState():
                self._store_state(command.state, self.new_history(command.component, command.kind))
            case Fork():
                self._store_state(command.copy, self.states[command.state])
            case LoadState():
                self._store_state(command.state, command.exported.data)
            case Export():
                result = None if command.is_ahead else ExportedState("", "", self.states[command.state])
                return ExportFinished(command.ticket, result)
            case Free():
                for number in command.states:
                    del self.states[number]
        return None

    def _store_state(self, number: int, history: H) -> None:
        assert number not in self.states, f"state {number} is created twice"
        self.states[number] = history


def split_chunks(op: Op, batch: Batch, whole_s: float, token_budget: int | None) -> list[float]:
    """Set the chunk of each job like a real engine, if the whole batch would take `whole_s`; return their fractions."""
    jobs = batch.jobs
    if op.chunked:
        positions = sum(op.lengths(job.arguments for job in jobs))
        budget = token_budget or positions
        affordable = (
            positions
            if whole_s <= batch.time_limit_s
            else max(MIN_CHUNK_POSITIONS, int(positions * batch.time_limit_s / whole_s))
        )
        split_budget(op, jobs, min(budget, affordable))
    for job in jobs:
        job.done = job.end
    return [job.chunk_length / job.length if job.length else 1.0 for job in jobs]


class RealEngineMirror:
    """A real engine beside a virtual one, to record what its commands give and cost."""

    def __init__(self, name: str, model: Model) -> None:
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._engine_thread = EngineThread({name: model}, RealEngine(), self._reports.put, threading.Lock())

    def __enter__(self) -> Self:
        self._engine_thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._engine_thread.stop()

    def execute(self, command: Command) -> None:
        """Execute a command that is not a batch."""
        self._engine_thread.submit([command], may_run_inline=False)

    def run(self, batch: Batch) -> BatchFinished:
        """Execute a whole batch, and wait for it."""
        self._engine_thread.submit([replace(batch, time_limit_s=inf)], may_run_inline=False)
        report = self._reports.get()
        assert isinstance(report, BatchFinished)
        return report
