"""Activation frames of a partition run: one body being executed, and the interface of the run that executes it.

`Run` is the part of `run.PartitionRun` that frames, instruction handlers, regions and streams use. It is declared here
so that these modules do not import `run`, which imports them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from mstar.plan.runtime.messages import IterationPath, PartitionMessage
from mstar.plan.runtime.stream_ends import ReaderEnd, WriterEnd
from mstar.plan.tables import BodyTable, Call, Emit, Instruction, PartitionProgram, Segment, Send


class Host(Protocol):
    """Creates the states of a run."""

    def new_state(self, component: str, kind: str) -> Any:
        """Create a state of a component."""
        ...

    def fork(self, state: Any) -> Any:
        """Fork a state: an independent copy."""
        ...


class Run(Protocol):
    """Execution of one partition for one request, as instruction handlers see it."""

    program: PartitionProgram
    host: Host
    ready: list[ReadyInstruction]
    has_minimal_buffers: bool
    outbox: list[PartitionMessage]
    emissions: list[tuple[Emit, Any]]
    todo: list[tuple[Frame, int]]
    early_values: dict[tuple[int, IterationPath], Any]
    expected: dict[tuple[int, IterationPath], Frame]
    readers: dict[tuple[int, IterationPath], ReaderEnd]
    writers: dict[tuple[int, IterationPath], WriterEnd]

    def begin(self, frame: Frame) -> None:
        """Start one iteration of a frame's body."""
        ...

    def finish(self, frame: Frame, instruction: Instruction) -> None:
        """Send the results of an instruction and release its dependents."""
        ...

    def send(self, frame: Frame, sends: tuple[Send, ...]) -> None:
        """Send slots of a frame to other partitions."""
        ...

    def drain(self) -> None:
        """Execute every instruction that needs no op."""
        ...

    def run_segments(self, frame: Frame, segment: Segment) -> None:
        """Continue a straight-line body to its next call or to its end."""
        ...

    def reader(self, number: int, path: IterationPath) -> ReaderEnd:
        """Get or create the reading end of a stream."""
        ...

    def writer(self, number: int, path: IterationPath) -> WriterEnd:
        """Get or create the writing end of a stream."""
        ...

    def end(self, root: Frame) -> None:
        """Record the outputs of the walk."""
        ...


OnBodyEnd = Callable[[Run, "Frame"], bool]
"""Continuation of a body. Returns True if the same frame runs its next iteration at once."""


class Frame:
    """One body being executed: its slots, and the dependency counters of its instructions."""

    __slots__ = (
        "index",
        "instruction",
        "limit",
        "on_end",
        "parent",
        "pending",
        "region",
        "remaining",
        "run",
        "slots",
        "table",
        "unfinished",
    )

    def __init__(
        self,
        run: Run,
        table: BodyTable,
        parent: Frame | None,
        instruction: Instruction | None,
        on_end: OnBodyEnd,
    ) -> None:
        self.run = run
        self.on_end = on_end
        self.table = table
        self.parent = parent
        self.instruction = instruction
        self.region: Any = instruction.detail if instruction is not None else None
        self.slots: list[Any] = [None] * table.slots
        self.pending: list[int] = []
        self.remaining = 0
        self.index = 0
        self.limit = 0
        self.unfinished: dict[int, int] | None = None
        """Unfinished bodies of each `each` region in this frame, by instruction index."""

    def path(self) -> IterationPath:
        """Iteration index of each enclosing region, outermost first."""
        frame = self
        indexes: list[int] = []
        while frame.parent is not None:
            indexes.append(frame.index)
            frame = frame.parent
        return tuple(reversed(indexes))

    def arguments(self, instruction: Instruction) -> dict[str, Any]:
        """Arguments of a ready call, by parameter name."""
        call: Call = instruction.detail
        slots = self.slots
        arguments = dict(zip(call.names, [slots[arg] for arg in instruction.args], strict=True))
        if call.constants:
            arguments.update(call.constants)
        return arguments


ReadyInstruction = tuple[Frame, Instruction]
"""A call whose arguments are available."""
