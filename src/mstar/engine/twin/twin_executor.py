"""TwinExecutor: the steps of the engine on components without weights.

The engine, its chunking, eviction and isolation of failures, and everything above are those of a real worker. Only what
an op computes is replaced, and the step lasts as long as `OpTimes` says.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from mstar.engine.executor import BatchCall, Executor
from mstar.engine.twin.op_times import OpTimes
from mstar.engine.twin.synthetic_op import RecordedOutputs, SyntheticOp, nothing_recorded
from mstar.plan.profile import ModelProfile
from mstar.transfer.values import unpack
from mstar.walk.component import Component, Op
from mstar.walk.states import State
from mstar.walk.twin import TwinSizes

S = TypeVar("S", bound=State)


class TwinState(State):
    """State of a component without weights: nothing reads it."""


@dataclass(frozen=True, slots=True)
class TwinComponent:
    """What replaces a component."""

    ops: Mapping[str, Op]
    """All ops by name: with their own body, with one for twins, or synthetic."""
    has_states: bool
    """Whether it makes its states itself."""
    times: OpTimes

    @classmethod
    def prepare(
        cls, component: Component, sizes: TwinSizes, times: OpTimes, profile: ModelProfile | None = None
    ) -> TwinComponent:
        """Prepare a component of a model. Loads no weights."""
        bodies = component.prepare_twin(sizes)
        ops: dict[str, Op] = {}
        for name, op in component.ops().items():
            if (body := bodies.get(name)) is None:
                full_name = f"{component.name}.{name}"
                ops[name] = SyntheticOp(op, full_name, sizes, _recorded_outputs(profile, full_name))
            else:
                _ = op.signature  # the copy keeps it: that of the other body can differ
                ops[name] = copy.copy(op)
                ops[name].body = body
        return cls(ops, bool(bodies), times)


class TwinExecutor(Executor):
    """Runs steps of prepared components. `wait` is called with the seconds that are left of a step."""

    def __init__(
        self, components: Mapping[Component, TwinComponent], wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._components = components
        self._wait = wait

    def make_state(self, component: Component, kind: type[S], tenant: str) -> S:
        """Create a state of a component."""
        if self._components[component].has_states:
            return super().make_state(component, kind, tenant)
        return cast("S", TwinState())

    def load_state(self, component: Component, kind: type[S], exported: Any, tenant: str | None) -> S:
        """Create a state from an export."""
        if self._components[component].has_states:
            return super().load_state(component, kind, exported, tenant)
        return cast("S", TwinState())

    def run_batch(self, component: Component, call: BatchCall) -> list[tuple[Any, ...]] | Exception:
        """Run a batch without weights, and wait until it has lasted as long as it takes with them."""
        started_at, twin = time.perf_counter(), self._components[component]
        op = twin.ops[call.op.name]
        outcome = super().run_batch(component, replace(call, op=op))
        seconds = twin.times.batch_s(f"{component.name}.{op.name}", _lengths(op, call))
        if (left := seconds - (time.perf_counter() - started_at)) > 0:
            self._wait(left)
        return outcome


def _lengths(op: Op, call: BatchCall) -> list[int]:
    """Positions of each call of a batch; 1 for an op without a dimension of its batch."""
    name, axis = next(iter(op.axes.items()), ("", 0))
    return [value.shape[axis] for value in call.columns[name]] if name else [1] * call.count


def _recorded_outputs(profile: ModelProfile | None, name: str) -> RecordedOutputs:
    """The outputs of the recorded calls of an op."""
    numbers = [number for number, op in enumerate(profile.ops) if op.partition("[")[0] == name] if profile else []
    if profile is None or not numbers:
        return nothing_recorded

    def nearest(length: int) -> tuple[Any, ...] | None:
        call = profile.nearest_call(numbers[0], length)
        if call is None:
            return None
        return unpack(call.outputs.data, [bytearray(size) for size in call.outputs.large])

    return nearest
