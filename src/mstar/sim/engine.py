"""A worker's engine in virtual time: commands in the order given, real op bodies, made-up costs, memory that runs out.

It has no threads and knows no requests; who is told of what has run is its owner's business.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mstar.engine.frameless import frameless
from mstar.engine.jobs import UNFINISHED, Done, Failed, Job, Result
from mstar.plan.tables import BatchKey
from mstar.sim.models import Memory, model_of
from mstar.wire.messages import Suspect
from mstar.worker.commands import Batch, Cargo, Command, Export, Exported, Fork, Free, Load, Make, Ran, StateRef


class NeverFits(Exception):
    """A call needs more memory than there is."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a scenario's engines cost and can hold."""

    batch: float
    """Seconds for a batch."""
    job: float
    """Seconds more for each of its jobs."""
    pages: int
    """How much all resident states of a worker may take."""
    unfinished: float
    """How likely it is that a job has to be handed in once more."""


@functools.cache
def body_of(model: str, key: BatchKey) -> tuple[Callable[..., Any], Any, bool, int, bool]:
    """How to run an op: its body, its component, whether it gives a tuple, how many values, whether only once."""
    component = model_of(model).components()[key.component]
    op = component.ops()[key.op]
    return op.body, component, op.signature.gives_tuple, len(op.signature.outs), op.once


class SimEngine:
    """The engine of one life of a worker.

    `start` is told how many seconds the batch takes that begins; its owner calls `end` when they are over.
    """

    def __init__(self, drawn: random.Random, costs: Costs, once: list[tuple[int, ...]]) -> None:
        self.states: dict[int, Memory] = {}
        self.batch: Batch | None = None
        """What runs."""
        self.answers: list[Exported] = []
        """What its owner is to be told."""
        self._drawn = drawn
        self._costs = costs
        self._once = once
        self._queue: deque[Command] = deque()
        self._resident: dict[int, None] = {}  # the one that was not used for longest comes first
        self._used = 0
        self._handed_in: dict[int, int] = {}

    @property
    def suspects(self) -> list[Suspect]:
        """Whose calls run."""
        return self.batch.suspects if self.batch is not None else []

    def take(self, command: Command) -> float | None:
        """A new command. How long the batch takes that begins with it, if one does."""
        self._queue.append(command)
        return self._go_on() if self.batch is None else None

    def _go_on(self) -> float | None:
        while self._queue:
            command = self._queue.popleft()
            if isinstance(command, Batch):
                self.batch = command
                return self._costs.batch + self._costs.job * len(command.jobs)
            self._do(command)
        return None

    def _do(self, command: Command) -> None:
        match command:
            case Make():
                self._keep(command.state, Memory())
            case Fork():
                self._keep(command.copy, self.states[command.state].fork())
            case Free():
                for number in command.states:
                    self._leave(number)
                    del self.states[number]
            case Export():
                state = self.states[command.state]
                self.answers.append(Exported(command.ticket, Cargo("", "Memory", (state.digest, state.size))))
            case Load():
                self._keep(command.state, Memory(*command.cargo.data))
            case Batch():
                raise AssertionError("a batch takes time")

    def _keep(self, number: int, state: Memory) -> None:
        if number in self.states:
            raise AssertionError(f"state {number} is made twice")
        self.states[number] = state

    def _leave(self, number: int) -> None:
        if number in self._resident:
            del self._resident[number]
            self._used -= self.states[number].size

    # ---------------------------------------------------------------- batches
    def end(self) -> tuple[Ran, float | None]:
        """The batch has run: what came of it, and how long the next one takes. A trap may raise Crash."""
        batch = self.batch
        assert batch is not None
        evicted: list[int] = []
        results = [self._run(batch, job, evicted) for job in batch.jobs]
        self.batch = None
        seconds = self._costs.batch + self._costs.job * len(batch.jobs)
        return Ran(batch.number, results, seconds, tuple(evicted)), self._go_on()

    def _run(self, batch: Batch, job: Job, evicted: list[int]) -> Result:
        if self._costs.unfinished and self._drawn.random() < self._costs.unfinished and job.done < 2:
            job.done += 1
            return UNFINISHED
        body, component, gives_tuple, count, is_once = body_of(batch.model, batch.key)
        arguments, used = job.arguments, None
        for name, value in arguments.items():
            if isinstance(value, StateRef):
                if used is None:
                    arguments, used = dict(arguments), []
                used.append(value.number)
                arguments[name] = self.states[value.number]
        if is_once:
            self._once.append(tuple(job.arguments.values()))
        try:
            given = (
                self._with_states(body, component, arguments, used, evicted) if used else body(component, **arguments)
            )
        except Exception as error:  # noqa: BLE001 - whatever a request makes an op raise ends that request only
            return Failed(frameless(error))
        return Done(given if gives_tuple else (given,) if count else ())

    def _with_states(
        self, body: Callable[..., Any], component: Any, arguments: dict[str, Any], used: list[int], evicted: list[int]
    ) -> Any:
        """Run a body whose states have to be resident; others make room."""
        states = [self.states[number] for number in used]
        before = [(state.digest, state.size) for state in states]
        for number in used:
            self._leave(number)
        try:
            given = body(component, **arguments)
            size = sum(state.size for state in states)
            if size > self._costs.pages:
                raise NeverFits(f"{size} pages of {self._costs.pages}")
        except Exception:
            for state, (digest, size) in zip(states, before, strict=True):
                state.digest, state.size = digest, size
            raise
        finally:
            for number, state in zip(used, states, strict=True):
                self._resident[number] = None
                self._used += state.size
        while self._used > self._costs.pages:
            oldest = next(iter(self._resident))
            self._leave(oldest)
            evicted.append(oldest)
        return given
