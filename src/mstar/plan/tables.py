"""Plan tables: the compiled form of a walk under a placement, which workers execute without further lookups.

A plan is compiled once per walk and placement and shared by all requests. A request has only counters and slots (see
`runtime.run`). Instructions refer to each other, to values and to seats by number. A *seat* is a partition of a walk,
bound to one worker per request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from mstar.graph.ir import Literal
from mstar.graph.types import StateType, Type
from mstar.plan.placement import WorkerSet


class Opcode(IntEnum):
    """Operation of an instruction."""

    CALL = 0
    NEW = 1
    FORK = 2
    CONST = 3
    TAKE = 4
    FIELD = 5
    COUNT = 6
    WRITER = 7
    READER = 8
    PUT = 9
    GET = 10
    CLOSE = 11
    DETACH = 12
    EMIT = 13
    LOOP = 14
    WINDOWS = 15
    EACH = 16
    CHOOSE = 17


@dataclass(frozen=True, slots=True)
class BatchKey:
    """Calls with equal keys can share a batch, across walks and requests."""

    component: str
    op: str
    static: tuple[tuple[str, Literal], ...] = ()

    def __str__(self) -> str:
        static = ", ".join(f"{name}={literal!r}" for name, literal in self.static)
        return f"{self.component}.{self.op}" + (f"[{static}]" if static else "")


@dataclass(frozen=True, slots=True)
class Send:
    """Send the value of a slot to another seat, where it has the number `value`."""

    slot: int
    seat: int
    value: int
    is_state: bool


@dataclass(frozen=True, slots=True)
class RemainingIterations:
    """A loop on the path from a call to an emission, `levels_up` frames above the call, with its calls per iteration.

    It runs its remaining iterations or, if it fills a stream, until the next window of the stream is full.
    """

    levels_up: int
    keys: tuple[tuple[int, int], ...]
    first: int = 0
    stride: int = 0
    """Window k of the stream ends at item `first + k * stride`; 0 if there is no stream."""
    offset: int = 0
    """Items in the stream, beyond the loop's index, when the path first reaches it."""

    def count_iterations(self, index: int, limit: int) -> int:
        """Remaining iterations of a loop at iteration `index` of at most `limit`."""
        if not self.stride:
            return max(0, limit - index - 1)
        count = index + self.offset
        return self.first - count if count <= self.first else (self.first - count) % self.stride


@dataclass(frozen=True, slots=True)
class PathToOutput:
    """Calls, by batch key, between a call and the next emission of a kind ("": the end of the walk)."""

    kind: str
    keys: tuple[tuple[int, int], ...]
    loops: tuple[RemainingIterations, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an op: batch key, parameters that come from slots, constant parameters, paths to outputs."""

    key: int
    names: tuple[str, ...]
    constants: tuple[tuple[str, Literal], ...]
    paths: tuple[PathToOutput, ...] = ()
    index: int = 0
    """Index of the call in its walk, in program order."""


@dataclass(frozen=True, slots=True)
class NewState:
    """Component and kind of a state to create."""

    component: str
    kind: str


@dataclass(frozen=True, slots=True)
class Writer:
    """Writing end of a stream: its readers as (seat, reader), and the maximum number of buffered items.

    Below `min_bound` items, the largest window would never fill.
    """

    stream: int
    readers: tuple[tuple[int, int], ...]
    bound: int
    min_bound: int


@dataclass(frozen=True, slots=True)
class Reader:
    """Reading end of a stream, and the seat of its writer."""

    reader: int
    stream: int
    writer_seat: int
    siblings: tuple[int, ...] = ()
    """Other readers at this seat in the same region. While the region waits for one, it must not block the others."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Kind of an emission, with its clock parameters."""

    kind: str
    clock: tuple[tuple[str, int | float], ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Window parameters, the inner slots that a window fills, and the seats that receive it."""

    size: int
    stride: int
    first: int
    flush: bool
    more: int
    item: int
    fresh: int
    sends: tuple[Send, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A `loop`, `windows`, `each` or `choose` as one seat executes it.

    `copy_in` copies outer slots into the inner body at its start, `carry` copies inner slots at the end of an
    iteration, `copy_out` copies inner slots (per arm of a choice) to the outer body at the end of the region.
    """

    bodies: tuple[int, ...]
    copy_in: tuple[tuple[tuple[int, int], ...], ...]
    carry: tuple[tuple[int, int], ...] = ()
    copy_out: tuple[tuple[tuple[int, int], ...], ...] = ()
    collect: tuple[tuple[int, int], ...] = ()
    stop: tuple[int, ...] = ()
    control: int = -1
    """Outer slot of the number of steps, the count or the flag; -1 if `steps` is a constant."""
    steps: int = 0
    counter: int = -1
    """Inner slot of the step or index."""
    more: int = -1
    """Windows region: number of the message that announces a window to a seat that does not read the stream."""
    window: Window | None = None
    """Windows region, at the seat that reads the stream."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction at one seat: the slots it reads and fills, its dependents, its sends."""

    index: int
    opcode: Opcode
    args: tuple[int, ...]
    outs: tuple[int, ...]
    dependents: tuple[int, ...]
    sends: tuple[Send, ...]
    detail: Any = None
    """Operand by opcode: a Call, NewState, Writer, Reader, Emit or Region, a constant, or a field name."""
    next_segment: Segment | None = None
    """Call in a straight-line body: the segment that follows it, so that no counters are needed."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Instructions between two calls of a straight-line body, then the next call or None at the body's end."""

    instructions: tuple[Instruction, ...]
    call: Instruction | None


@dataclass(frozen=True, slots=True)
class RemoteInput:
    """A value of this body that another seat sends in each iteration."""

    slot: int
    dependents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BodyTable:
    """One body at one seat. An iteration starts at `entry` with counters `pending` and ends after `count` results."""

    number: int
    slots: int
    instructions: tuple[Instruction, ...]
    pending: tuple[int, ...]
    entry: tuple[int, ...]
    count: int
    remote_inputs: dict[int, RemoteInput]
    first_segment: Segment | None = None
    """First segment of a straight-line body: one without remote inputs whose calls are sequential."""
    order: tuple[int, ...] = ()
    """Execution order of the instructions of a straight-line body."""


@dataclass(frozen=True, slots=True)
class PartitionProgram:
    """Program of one seat of a walk."""

    seat: int
    bodies: dict[int, BodyTable]
    inputs: tuple[tuple[int, int], ...]
    """(input, slot) pairs that the seat receives at the start."""
    outputs: tuple[tuple[int, int], ...]
    """(output, slot) pairs that the seat returns at the end."""
    states: tuple[tuple[int, int], ...]
    """(input, slot) pairs: input states whose last version is at this seat."""


@dataclass(frozen=True, slots=True)
class CutEdge:
    """A value that crosses from one seat to another, inside `depth` nested regions."""

    name: str
    type: Type
    source: int
    target: int
    depth: int
    is_stream: bool = False

    @property
    def is_state(self) -> bool:
        """Whether a state moves along this edge, rather than a value."""
        return isinstance(self.type, StateType)


@dataclass(frozen=True, slots=True)
class Plan:
    """One walk under one placement."""

    walk: str
    worker_sets: tuple[WorkerSet, ...]
    programs: tuple[PartitionProgram, ...]
    cut_edges: tuple[CutEdge, ...]
    input_names: tuple[str, ...]
    gives_tuple: bool
    calls: tuple[tuple[int, int], ...]
    """(batch key, seat) of every call, in program order."""
    streams: tuple[tuple[str, int], ...] = ()
    """Name and maximum number of buffered items of every stream."""

    @property
    def emits(self) -> bool:
        """Whether the walk emits anything to the client."""
        bodies = (body for part in self.programs for body in part.bodies.values())
        return any(instruction.opcode is Opcode.EMIT for body in bodies for instruction in body.instructions)


@dataclass(frozen=True, slots=True)
class Plans:
    """All walks of a model under one placement, over one list of batch keys."""

    walks: dict[str, Plan]
    keys: tuple[BatchKey, ...]
    workers: tuple[str, ...]
    replica_groups: tuple[tuple[tuple[str, ...], int], ...] = ()
    """Workers and minimum replicas of each placement rule."""
