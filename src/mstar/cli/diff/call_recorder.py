"""CallRecorder: an executor that notes digests of what each op call reads, returns and writes to its states.

A call has a digest of each argument, of each output, and of each state before and after it. The state of a language
model is its KV cache: a difference inside the network shows there at the call that made it, although the token that is
returned can be the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from mstar.engine.executor import BatchCall, Executor
from mstar.frontend.actor import digest
from mstar.walk.component import Component
from mstar.walk.states import State

S = TypeVar("S", bound=State)


class CallId(NamedTuple):
    """A call: its op as "component.op", and its number among the calls of this op, from 0."""

    op: str
    number: int


@dataclass(slots=True)
class RecordedCall:
    """Digests of one op call."""

    arguments: dict[str, bytes]
    """Of each argument; of a state, before the call."""
    outputs: tuple[bytes, ...] = ()
    states: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Of each state that the op can change, after the call."""
    error: str = ""
    """The exception that it raised."""
    values: tuple[Any, ...] | None = None
    """The outputs themselves, of the calls that `CallRecorder` keeps."""

    @property
    def result(self) -> tuple[Any, ...]:
        """Everything that must be equal if the arguments are."""
        return self.outputs, self.states, self.error


class CallRecorder(Executor):
    """Runs calls alone, in this process, and records them in their order. Keeps the outputs of the calls in `kept`.

    All states belong to `tenant`: a prefix cache must not have what an earlier run with another tenant computed.
    """

    def __init__(self, tenant: str, kept: Collection[CallId] = ()) -> None:
        self.calls: dict[CallId, RecordedCall] = {}
        self._tenant = tenant
        self._kept = kept
        self._numbers = Counter[str]()

    def make_state(self, component: Component, kind: type[S], tenant: str) -> S:  # noqa: ARG002 - see the class
        """Create a state of a component."""
        return super().make_state(component, kind, self._tenant)

    def run_batch(self, component: Component, call: BatchCall) -> list[tuple[Any, ...]] | Exception:
        """Run a call, and record it."""
        assert call.count == 1, "calls run alone"
        op = f"{component.name}.{call.op.name}"
        key = CallId(op, self._numbers[op])
        self._numbers[op] += 1
        arguments = {name: column[0] for name, column in call.columns.items()}
        record = self.calls[key] = RecordedCall({name: _digest_of(value) for name, value in arguments.items()})
        outcome = super().run_batch(component, call)
        if isinstance(outcome, Exception):
            record.error = f"{type(outcome).__name__}: {outcome}"
            return outcome
        record.outputs = tuple(map(_digest_of, outcome[0]))
        record.states = _state_digests(call, arguments)
        if key in self._kept:
            record.values = outcome[0]
        return outcome


def _state_digests(call: BatchCall, arguments: Mapping[str, Any]) -> dict[str, bytes]:
    changing = [name for name, is_extended in call.op.states.items() if is_extended]
    return {name: _digest_of(arguments[name]) for name in changing if isinstance(arguments[name], State)}


def _digest_of(value: Any) -> bytes:
    return digest(value.export() if isinstance(value, State) else value)
