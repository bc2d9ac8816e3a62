"""Simulated engine of a worker: real op bodies, simulated latencies, limited memory with LRU eviction.

Commands are executed in order, without threads. The owner advances time and delivers the reports.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mstar.engine.jobs import UNFINISHED, Job, JobDone, JobFailed, Result
from mstar.engine.tracebacks import strip_traceback
from mstar.plan.tables import BatchKey
from mstar.sim.models import DigestState, SimRequest, sim_model
from mstar.wire.messages import Suspect
from mstar.worker.commands import (
    Batch,
    BatchFinished,
    Command,
    CreateState,
    EvictFirst,
    Export,
    ExportedState,
    ExportFinished,
    Fork,
    Free,
    LoadAhead,
    LoadState,
    StateRef,
)


class NeverFits(Exception):
    """A call needs more memory than the engine has."""


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """Latencies and memory of the engines of a scenario."""

    batch_s: float
    """Seconds per batch."""
    job_s: float
    """Additional seconds per job."""
    pages: int
    """Maximum total size of the resident states of a worker."""
    unfinished_probability: float
    """Probability that a job is unfinished and must be submitted again."""


@functools.cache
def resolve_op(model: str, key: BatchKey) -> tuple[Callable[..., Any], Any, bool, int, bool]:
    """Return body, component, whether it returns a tuple, number of outputs, and whether it is non-idempotent."""
    component = sim_model(model).components()[key.component]
    op = component.ops()[key.op]
    return op.body, component, op.signature.gives_tuple, len(op.signature.outs), not op.idempotent


class SimEngine:
    """Engine of one worker incarnation.

    `submit` returns the latency of the batch that starts, if one does. The owner calls `finish_batch` after that time.
    """

    def __init__(
        self, rng: random.Random, costs: EngineCosts, non_idempotent_calls: list[tuple[int, ...]], salt: int = 0
    ) -> None:
        self.states: dict[int, DigestState] = {}
        self.batch: Batch | None = None
        """The batch in execution."""
        self.outputs: list[ExportFinished] = []
        """Reports for the owner to deliver."""
        self._rng = rng
        self._costs = costs
        self._non_idempotent_calls = non_idempotent_calls
        self._salt = salt
        """Changes the results of nondeterministic requests; another one for each incarnation."""
        self._queue: deque[Command] = deque()
        self._resident: dict[int, None] = {}  # least recently used first
        self._evict_first: set[int] = set()
        self._used = 0
        self._submissions: dict[int, int] = {}

    @property
    def suspects(self) -> list[Suspect]:
        """Requests in the current batch."""
        return self.batch.suspects if self.batch is not None else []

    def submit(self, command: Command) -> float | None:
        """Queue a command; return the latency of the batch that starts, if one does."""
        self._queue.append(command)
        return self._start_next() if self.batch is None else None

    def _start_next(self) -> float | None:
        while self._queue:
            command = self._queue.popleft()
            if isinstance(command, Batch):
                self.batch = command
                return self._costs.batch_s + self._costs.job_s * len(command.jobs)
            self._apply(command)
        return None

    def _apply(self, command: Command) -> None:
        match command:
            case CreateState():
                self._store_state(command.state, DigestState())
            case Fork():
                self._store_state(command.copy, self.states[command.state].fork())
            case Free():
                for number in command.states:
                    self._evict(number)
                    self._evict_first.discard(number)
                    del self.states[number]
            case EvictFirst():
                mark = self._evict_first.update if command.is_first else self._evict_first.difference_update
                mark(command.states)
            case Export():
                state = self.states[command.state]
                self.outputs.append(
                    ExportFinished(command.ticket, ExportedState("", "Memory", (state.digest, state.size)))
                )
            case LoadAhead():
                pass  # a part of a state only saves work
            case LoadState():
                self._store_state(command.state, DigestState(*command.exported.data))
            case Batch():
                raise AssertionError("a batch takes time")

    def _store_state(self, number: int, state: DigestState) -> None:
        if number in self.states:
            raise AssertionError(f"state {number} is created twice")
        self.states[number] = state

    def _evict(self, number: int) -> None:
        if number in self._resident:
            del self._resident[number]
            self._used -= self.states[number].size

    # ---------------------------------------------------------------- batches
    def finish_batch(self) -> tuple[BatchFinished, float | None]:
        """Finish the current batch; return its report and the latency of the next one. A trap can raise WorkerCrash."""
        batch = self.batch
        assert batch is not None
        evicted: list[int] = []
        results = [self._run_job(batch, job, evicted) for job in batch.jobs]
        self.batch = None
        seconds = self._costs.batch_s + self._costs.job_s * len(batch.jobs)
        return BatchFinished(batch.number, results, seconds, tuple(evicted)), self._start_next()

    def _run_job(self, batch: Batch, job: Job, evicted: list[int]) -> Result:
        if (
            self._costs.unfinished_probability
            and self._rng.random() < self._costs.unfinished_probability
            and job.done < 2
        ):
            job.done += 1
            return UNFINISHED
        body, component, gives_tuple, count, is_non_idempotent = resolve_op(batch.model, batch.key)
        arguments, used = job.arguments, None
        for name, value in arguments.items():
            if isinstance(value, StateRef):
                if used is None:
                    arguments, used = dict(arguments), []
                used.append(value.number)
                arguments[name] = self.states[value.number]
        if isinstance(request := arguments.get("request"), SimRequest) and request.is_nondeterministic:
            arguments = {**arguments, "request": replace(request, salt=self._salt)}
        if is_non_idempotent:
            self._non_idempotent_calls.append(tuple(job.arguments.values()))
        try:
            value = (
                self._run_with_states(body, component, arguments, used, evicted)
                if used
                else body(component, **arguments)
            )
        except Exception as error:  # noqa: BLE001 - an exception of an op ends its request only
            return JobFailed(strip_traceback(error))
        return JobDone(value if gives_tuple else (value,) if count else ())

    def _run_with_states(
        self, body: Callable[..., Any], component: Any, arguments: dict[str, Any], used: list[int], evicted: list[int]
    ) -> Any:
        """Run a body with resident states, and evict others if memory is short."""
        states = [self.states[number] for number in used]
        before = [(state.digest, state.size) for state in states]
        for number in used:
            self._evict(number)
        try:
            value = body(component, **arguments)
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
            lookaheads = (number for number in self._resident if number in self._evict_first and number not in used)
            oldest = next(lookaheads, None) or next(iter(self._resident))
            self._evict(oldest)
            evicted.append(oldest)
        return value
