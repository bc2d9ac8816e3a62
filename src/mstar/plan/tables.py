"""The plan: integer tables that a worker follows without asking anyone.

A plan belongs to a walk and a placement, is made once, and is shared by all requests. A request keeps counters and
slots (see `run`), never a copy of any of this. Instructions name each other, values and seats by number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from mstar.graph.ir import Literal
from mstar.graph.types import StateType, Type
from mstar.plan.placement import WorkerSet


class Opcode(IntEnum):
    """What an instruction does."""

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
    """Calls with the same key may share a forward. It does not name the walk or the step."""

    component: str
    op: str
    static: tuple[tuple[str, Literal], ...] = ()

    def __str__(self) -> str:
        static = ", ".join(f"{name}={literal!r}" for name, literal in self.static)
        return f"{self.component}.{self.op}" + (f"[{static}]" if static else "")


@dataclass(frozen=True, slots=True)
class Send:
    """When this slot is filled, its value goes to another seat, where it has this number."""

    slot: int
    seat: int
    value: int
    is_state: bool


@dataclass(frozen=True, slots=True)
class RemainingIterations:
    """A loop on the way from a call to an emission, `up` frames above the call's: the calls of one time round.

    It goes round as often as it still has to; or, if a stream comes out of it, until the next window of that is full.
    """

    levels_up: int
    keys: tuple[tuple[int, int], ...]
    first: int = 0
    stride: int = 0
    """Window k of the stream ends at item `first + k * stride`; 0 if there is no stream."""
    offset: int = 0
    """How many items beyond the loop's index there are when the way leads to the stream for the first time."""

    def count_iterations(self, index: int, limit: int) -> int:
        """How many times round it is, for a loop that is there and may go as far as `limit`."""
        if not self.stride:
            return max(0, limit - index - 1)
        count = index + self.offset
        return self.first - count if count <= self.first else (self.first - count) % self.stride


@dataclass(frozen=True, slots=True)
class PathToOutput:
    """What comes between a call and the next emission of a kind (of none: the end of the walk): calls, by batch key."""

    kind: str
    keys: tuple[tuple[int, int], ...]
    loops: tuple[RemainingIterations, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """How to call an op: its batch key, which parameters come from which slots, the constant ones, where it leads."""

    key: int
    names: tuple[str, ...]
    constants: tuple[tuple[str, Literal], ...]
    paths: tuple[PathToOutput, ...] = ()
    index: int = 0
    """Which of the calls of its walk it is, in program order."""


@dataclass(frozen=True, slots=True)
class NewState:
    """Which state to make."""

    component: str
    kind: str


@dataclass(frozen=True, slots=True)
class Writer:
    """The filling end of a stream: its readers as (seat, reader), and how many items may wait.

    With fewer than `least`, the largest window would never fill.
    """

    stream: int
    readers: tuple[tuple[int, int], ...]
    bound: int
    min_bound: int


@dataclass(frozen=True, slots=True)
class Reader:
    """A reading end of a stream, and the seat that fills it."""

    reader: int
    stream: int
    writer_seat: int
    siblings: tuple[int, ...] = ()
    """Other readers here that the same region reads: while it waits for one, it is not slow with the others."""


@dataclass(frozen=True, slots=True)
class Emit:
    """What kind of thing goes to the client, with its clock."""

    kind: str
    clock: tuple[tuple[str, int | float], ...]


@dataclass(frozen=True, slots=True)
class Window:
    """How to cut windows from a stream, which inner slots they fill, and who is told of them."""

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
    """A loop, windows, each or choice as one seat takes part in it.

    `bring` copies slots of the outer body into the inner one; `carry` copies inner slots at the end of an iteration;
    `give` copies inner slots (of each arm, for a choice) out when the region ends.
    """

    bodies: tuple[int, ...]
    copy_in: tuple[tuple[tuple[int, int], ...], ...]
    carry: tuple[tuple[int, int], ...] = ()
    copy_out: tuple[tuple[tuple[int, int], ...], ...] = ()
    collect: tuple[tuple[int, int], ...] = ()
    stop: tuple[int, ...] = ()
    control: int = -1
    """Outer slot of the number of steps, the count or the flag; -1 where `steps` is a constant."""
    steps: int = 0
    counter: int = -1
    """Inner slot of the step or index."""
    more: int = -1
    """Of a windows region: the number under which a seat that does not read the stream is told of one more window."""
    window: Window | None = None
    """Of a windows region, at the seat that reads the stream."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step at one seat: which slots it reads and fills, whom it wakes, what it sends."""

    index: int
    opcode: Opcode
    args: tuple[int, ...]
    outs: tuple[int, ...]
    dependents: tuple[int, ...]
    sends: tuple[Send, ...]
    detail: Any = None
    """What it needs beside slots, by what it does: a Call, NewState, Writer, Reader, Emit or Region; a constant itself;
    a field's name."""
    next_segment: Segment | None = None
    """Of a call in a straight body: what follows it, so that nothing needs to be counted."""


@dataclass(frozen=True, slots=True)
class Segment:
    """In a straight body, what happens between two calls: acts in order, then a call, or (None) the body's end."""

    instructions: tuple[Instruction, ...]
    call: Instruction | None


@dataclass(frozen=True, slots=True)
class RemoteInput:
    """A value of this body that another seat sends each time the body runs."""

    slot: int
    dependents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BodyTable:
    """One body at one seat. A run of it starts with `pending`, fires `entry`, and ends after `count` completions."""

    number: int
    slots: int
    instructions: tuple[Instruction, ...]
    pending: tuple[int, ...]
    entry: tuple[int, ...]
    count: int
    remote_inputs: dict[int, RemoteInput]
    first_segment: Segment | None = None
    """How a straight body begins: one that nothing from elsewhere enters and whose calls follow one another."""
    order: tuple[int, ...] = ()
    """The instructions of a straight body in the order in which they are done."""


@dataclass(frozen=True, slots=True)
class PartitionProgram:
    """What one seat does in a walk."""

    seat: int
    bodies: dict[int, BodyTable]
    inputs: tuple[tuple[int, int], ...]
    """(input, slot) pairs that the seat is given at the start."""
    outputs: tuple[tuple[int, int], ...]
    """(output, slot) pairs that the seat gives at the end."""
    states: tuple[tuple[int, int], ...]
    """(input, slot) pairs: input states whose last version is here at the end."""


@dataclass(frozen=True, slots=True)
class CutEdge:
    """A value that goes from one seat to another, inside so many regions."""

    name: str
    type: Type
    source: int
    target: int
    depth: int
    is_stream: bool = False

    @property
    def is_state(self) -> bool:
        """Whether this is a state that moves, rather than a value that is sent."""
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
    """The name of every stream, and how many items may wait in it."""

    @property
    def emits(self) -> bool:
        """Whether it gives the client anything."""
        bodies = (body for part in self.programs for body in part.bodies.values())
        return any(instruction.opcode is Opcode.EMIT for body in bodies for instruction in body.instructions)


@dataclass(frozen=True, slots=True)
class Plans:
    """All walks of a model under one placement, over one list of batch keys."""

    walks: dict[str, Plan]
    keys: tuple[BatchKey, ...]
    workers: tuple[str, ...]
    replica_groups: tuple[tuple[tuple[str, ...], int], ...] = ()
    """Of each entry of the placement: its workers, and how many of them run even when there is little to do."""
