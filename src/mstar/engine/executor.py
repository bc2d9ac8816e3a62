"""Executor: what the engine does to components and their states, one step at a time.

The engine decides which step comes next. A worker with several ranks has an executor that runs each step on all of them
(`mstar.worker.ranks.leader`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from mstar.errors import DeviceFailed
from mstar.walk.component import Component, Op
from mstar.walk.states import State
from mstar.walk.values import is_device_failure

S = TypeVar("S", bound=State)


@dataclass(slots=True)
class BatchCall:
    """Calls of one op that run as one batch."""

    op: Op
    columns: dict[str, list[Any]]
    """Arguments by name, one per call."""
    count: int
    unfinished: frozenset[int]
    """Calls that have more chunks after this one."""
    states: list[State]
    """All states of the calls."""
    changing: list[State]
    """Those that the op extends."""
    is_checked: bool
    """Whether the results are checked against the annotation of the op."""


class Executor:
    """Runs steps in the caller's thread, on the components of this process."""

    def make_state(self, component: Component, kind: type[S], tenant: str) -> S:
        """Create a state of a component."""
        state = component.make_state(kind)
        state.tenant = tenant
        return state

    def load_state(self, component: Component, kind: type[S], exported: Any, tenant: str | None) -> S:
        """Create a state from an export. Raises OutOfPages."""
        state = component.load_state(kind, exported)
        if tenant is not None:
            state.tenant = tenant
        return state

    def fork(self, state: S) -> S:
        """Fork a state."""
        return state.fork()

    def export(self, state: State, to: str) -> Any:
        """Content of a state that is not evicted, without the parts that this worker was sent ahead."""
        return state.export_rest(to)

    def export_ahead(self, state: State, to: str) -> Any:
        """A part of a state that does not change any more, for this worker; None if there is none."""
        return state.export_ahead(to) if state.is_resident else None

    def load_ahead(self, component: Component, kind: type[State], exported: Any) -> None:
        """Keep a part of a state that is loaded later."""
        component.make_state(kind).load_ahead(exported)

    def evict(self, state: State) -> None:
        """Evict a state from the memory of its component."""
        state.evict()
        assert not state.is_resident, f"{type(state).__name__}.evict() left the state resident"

    def restore(self, component: Component, state: State) -> None:
        """Restore an evicted state. Raises OutOfPages."""
        component.restore([state])

    def run_batch(self, component: Component, call: BatchCall) -> list[tuple[Any, ...]] | Exception:
        """Run a batch; returns the values of its calls, or the exception after rolling back their states."""
        op, snapshots = call.op, list[tuple[State, Any]]()
        try:
            if call.states:
                if evicted := [state for state in call.states if not state.is_resident]:
                    component.restore(evicted)
                snapshots = [(state, state.snapshot()) for state in call.changing]
            return op.run(component, call.columns, call.count, call.unfinished, is_checked=call.is_checked)
        except Exception as error:
            if isinstance(error, DeviceFailed):
                raise
            if is_device_failure(error):  # bisection would blame requests for it, and a rollback can hang
                problem = f"the device failed in {component.name}.{op.name}: {error}"
                fix = "start a new process; if it fails again, check the device"
                raise DeviceFailed(f"{problem}\n  fix: {fix}") from error
            for state, snapshot in snapshots:
                state.rollback(snapshot)
            return error
