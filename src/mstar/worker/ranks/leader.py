"""Rank 0 of a worker: an executor that runs each step of a component with ranks on all of them.

A step is sent before it runs here, so that the ranks run it at the same time. If it fails here, it must fail on every
rank in the same way, as all have the same inputs: each confirms that before the engine goes on. Ranks that do not agree
have different states, and only a restart can help.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from mstar.engine.executor import BatchCall, Executor
from mstar.engine.tracebacks import strip_traceback
from mstar.errors import DeviceFailed
from mstar.walk.component import Component
from mstar.walk.states import State
from mstar.worker.channel import Channel
from mstar.worker.ranks.steps import (
    EvictState,
    ExportState,
    ForkState,
    FreeStates,
    LoadState,
    MakeState,
    RestoreState,
    RunBatch,
    StateNumber,
    Step,
    StepFailed,
)

S = TypeVar("S", bound=State)
R = TypeVar("R")
CONFIRM_TIMEOUT_S = 60.0
"""Seconds to wait for another rank to confirm the failure of a step."""


class LeaderExecutor(Executor):
    """Executor of rank 0. `components` are those that have ranks, by name; steps of all others run here only."""

    def __init__(self, components: Mapping[str, Component], others: Sequence[Channel]) -> None:
        self._names = {id(component): name for name, component in components.items()}
        self._others = others
        self._numbers: dict[int, int] = {}
        """Numbers of the states that the other ranks have too, by identity."""
        self._count = 0
        self._freed: deque[int] = deque()
        """Numbers of freed states that the other ranks do not know of yet."""

    # ---------------------------------------------------------------- states
    def make_state(self, component: Component, kind: type[S], tenant: str) -> S:
        """Create a state of a component, on all ranks."""
        if (name := self._names.get(id(component))) is None:
            return super().make_state(component, kind, tenant)
        step = MakeState(self._next_number(), name, kind.__name__, tenant)
        return self._add(step.state, self._run(step, lambda: Executor.make_state(self, component, kind, tenant)))

    def load_state(self, component: Component, kind: type[S], exported: Any, tenant: str | None) -> S:
        """Create a state from an export, on all ranks."""
        if (name := self._names.get(id(component))) is None:
            return super().load_state(component, kind, exported, tenant)
        step = LoadState(self._next_number(), name, kind.__name__, exported, tenant)
        loaded = self._run(step, lambda: Executor.load_state(self, component, kind, exported, tenant))
        return self._add(step.state, loaded)

    def fork(self, state: S) -> S:
        """Fork a state, on all ranks."""
        if id(state) not in self._numbers:
            return super().fork(state)
        step = ForkState(self._numbers[id(state)], self._next_number())
        return self._add(step.fork, self._run(step, lambda: Executor.fork(self, state)))

    def export(self, state: State, to: str) -> Any:
        """Content of a state, of which each rank can have a part."""
        if id(state) not in self._numbers:
            return super().export(state, to)
        return self._run(ExportState(self._numbers[id(state)]), lambda: Executor.export(self, state, to))

    def export_ahead(self, state: State, to: str) -> Any:
        """A part of a state; None if the other ranks have parts of it too."""
        return None if id(state) in self._numbers else super().export_ahead(state, to)

    def evict(self, state: State) -> None:
        """Evict a state, on all ranks."""
        if id(state) not in self._numbers:
            return super().evict(state)
        return self._run(EvictState(self._numbers[id(state)]), lambda: Executor.evict(self, state))

    def restore(self, component: Component, state: State) -> None:
        """Restore an evicted state, on all ranks."""
        if id(state) not in self._numbers:
            return super().restore(component, state)
        return self._run(RestoreState(self._numbers[id(state)]), lambda: Executor.restore(self, component, state))

    def _next_number(self) -> int:
        self._count += 1
        return self._count

    def _add(self, number: int, state: S) -> S:
        self._numbers[id(state)] = number
        weakref.finalize(state, self._forget, id(state), number).atexit = False
        return state

    def _forget(self, identity: int, number: int) -> None:
        """A state is gone. The other ranks forget it before the next step, which can need its memory."""
        if self._numbers.get(identity) == number:
            del self._numbers[identity]
        self._freed.append(number)

    # ---------------------------------------------------------------- batches
    def run_batch(self, component: Component, call: BatchCall) -> list[tuple[Any, ...]] | Exception:
        """Run a batch on all ranks; returns the values, or the exception that every rank has."""
        if (name := self._names.get(id(component))) is None:
            return super().run_batch(component, call)
        try:
            self._send(
                RunBatch(
                    component=name,
                    op=call.op.name,
                    columns={key: [self._to_plain(value) for value in column] for key, column in call.columns.items()},
                    count=call.count,
                    unfinished=sorted(call.unfinished),
                    states=[self._numbers[id(state)] for state in call.states],
                    changing=[self._numbers[id(state)] for state in call.changing],
                    is_checked=call.is_checked,
                )
            )
        except DeviceFailed:
            raise
        except Exception as error:  # noqa: BLE001 - an argument that cannot be sent fails its request only
            return error
        outcome = super().run_batch(component, call)
        if isinstance(outcome, Exception):
            # The frames of a traceback lead back to this one, and so to the states of the batch: they would be freed
            # only by the garbage collector, later than on the other ranks.
            self._confirm_failure(strip_traceback(outcome))
        return outcome

    def _to_plain(self, value: Any) -> Any:
        return StateNumber(self._numbers[id(value)]) if isinstance(value, State) else value

    # ---------------------------------------------------------------- the other ranks
    def _run(self, step: Step, execute: Callable[[], R]) -> R:
        """Run a step on all ranks. Raises the error that every rank has."""
        self._send(step)
        try:
            return execute()
        except DeviceFailed:
            raise
        except Exception as error:
            self._confirm_failure(error)
            raise

    def _send(self, step: Step) -> None:
        if self._freed:
            self._send_to_all(FreeStates([self._freed.popleft() for _ in range(len(self._freed))]))
        self._send_to_all(step)

    def _send_to_all(self, step: Step) -> None:
        try:
            for channel in self._others:
                channel.send(step)
        except OSError as error:
            raise DeviceFailed(f"a rank of this worker was lost: {error}\n  fix: none is needed") from error

    def _confirm_failure(self, error: Exception) -> None:
        """Wait until every other rank has had the same error in the last step."""
        self._send_to_all(StepFailed(type(error).__name__))
        for channel in self._others:
            try:
                channel.receive(CONFIRM_TIMEOUT_S)
            except (OSError, EOFError) as lost:
                problem = (
                    f"a rank of this worker did not confirm the failure of a step ({type(error).__name__}): {lost}"
                )
                fix = "read its log above; if it happens again, report it with the error of the request"
                raise DeviceFailed(f"{problem}\n  fix: {fix}") from error
