"""Ranks of a worker except rank 0: they repeat the steps of rank 0, and drop the results."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mstar.engine.executor import BatchCall, Executor
from mstar.engine.threads import use_threads
from mstar.engine.tracebacks import strip_traceback
from mstar.errors import DeviceFailed, MstarError
from mstar.walk.component import Component
from mstar.walk.states import State
from mstar.walk.values import inference_mode
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

log = logging.getLogger("mstar.worker")


class RanksDiffer(MstarError):
    """A step failed on some ranks only, so their states differ."""


class Follower:
    """Executes the steps of rank 0 on the components of this rank."""

    def __init__(self, components: Mapping[str, Component], channel: Channel) -> None:
        self._components = components
        self._ops = {name: component.ops() for name, component in components.items()}
        self._channel = channel
        self._executor = Executor()
        self._states: dict[int, State] = {}
        self._owners: dict[int, str] = {}
        """Component of each state."""

    def run(self) -> None:
        """Execute steps until rank 0 closes the channel. Raises RanksDiffer if one fails here and not there."""
        error: Exception | None = None
        while True:
            try:
                step = self._channel.receive()
            except EOFError:
                return
            if isinstance(step, StepFailed):
                self._confirm(step, error)
                error = None
            elif error is not None:
                raise RanksDiffer(f"a step failed on this rank only: {error}\n  fix: read the error above") from error
            else:
                error = self._try(step)

    def _confirm(self, step: StepFailed, error: Exception | None) -> None:
        name = "none" if error is None else type(error).__name__
        if name != step.error:
            problem = f"the error of a step is {name} on this rank and {step.error} on rank 0"
            raise RanksDiffer(f"{problem}\n  fix: none is needed; this worker is restarted") from error
        self._channel.send(True)

    def _try(self, step: Step) -> Exception | None:
        """Execute a step; returns its error, after which states are as before."""
        try:
            with inference_mode():
                if not isinstance(step, RunBatch):
                    self._change_states(step)
                    return None
                outcome = self._run_batch(step)
        except DeviceFailed:
            raise
        except Exception as error:  # noqa: BLE001 - rank 0 has it too, and reports it
            outcome = error
        return strip_traceback(outcome) if isinstance(outcome, Exception) else None

    def _run_batch(self, step: RunBatch) -> list[tuple[Any, ...]] | Exception:
        component = self._components[step.component]
        if component.threads is not None:
            use_threads(component.threads)
        columns = {key: [self._to_value(value) for value in column] for key, column in step.columns.items()}
        states, changing = ([self._states[number] for number in numbers] for numbers in (step.states, step.changing))
        op = self._ops[step.component][step.op]
        call = BatchCall(op, columns, step.count, frozenset(step.unfinished), states, changing, step.is_checked)
        return self._executor.run_batch(component, call)

    def _to_value(self, value: Any) -> Any:
        return self._states[value.number] if isinstance(value, StateNumber) else value

    def _change_states(self, step: Step) -> None:
        executor, states = self._executor, self._states
        match step:
            case MakeState() | LoadState():
                component = self._components[step.component]
                kind = component.state_kinds()[step.kind]
                if isinstance(step, MakeState):
                    states[step.state] = executor.make_state(component, kind, step.tenant)
                else:
                    states[step.state] = executor.load_state(component, kind, step.exported, step.tenant)
                self._owners[step.state] = step.component
            case ForkState():
                states[step.fork] = executor.fork(states[step.state])
                self._owners[step.fork] = self._owners[step.state]
            case FreeStates():
                for number in step.states:
                    states.pop(number, None)
                    self._owners.pop(number, None)
            case ExportState():
                executor.export(states[step.state], "")
            case EvictState():
                executor.evict(states[step.state])
            case RestoreState():
                executor.restore(self._components[self._owners[step.state]], states[step.state])
            case _:
                raise TypeError(f"a {type(step).__name__} does not change states")
