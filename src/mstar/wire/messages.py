"""Every message that front ends, conductors, workers and the launcher send each other.

The set is closed: what is not here cannot be said. A `Value` is the one field whose type is open: a prompt, a tensor, a
result. Inside a process it goes by reference; whoever writes frames is given a codec for it.

An *attempt* numbers the tries at one request: the conductor's generation in its high bits, so that a later one is
always larger. Whatever speaks of an attempt that is over is ignored.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """One life of one process: its name, and how often that name was started before."""

    name: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.name}.{self.incarnation}"


class Value:
    """A value of an author's program on its way."""

    __slots__ = ("it",)

    def __init__(self, it: Any) -> None:
        self.it = it

    def __repr__(self) -> str:
        return f"Value({self.it!r})"


class Message(msgspec.Struct, tag=True, array_like=True):
    """Anything one process says to another."""


# ---------------------------------------------------------------- everybody
class Hello(Message):
    """I am here, in this life: sent by who starts, and by a new conductor to everyone. A worker tells what it holds."""

    components: tuple[str, ...] = ()
    """Of a worker: the components that are loaded, each as "model.component"."""


class Forget(Message):
    """This life of a process is over: keep nothing for it."""

    peer: Peer


class TakeStock(Message):
    """What do you hold?"""

    ticket: int


class WalkCount(msgspec.Struct, array_like=True):
    """What calls of one op from one walk came to, since the process began."""

    calls: int = 0
    seconds: float = 0.0
    """A batch's seconds are shared equally among its calls."""
    waited: float = 0.0
    """For how many seconds they were ready and did not run."""


class OpCount(msgspec.Struct, array_like=True):
    """What one op came to, since the process began: how many batches, and the calls of each walk."""

    model: str
    component: str
    op: str
    batches: int = 0
    walks: dict[str, WalkCount] = {}


class Stock(Message):
    """What I hold, counted."""

    ticket: int
    counts: dict[str, int]
    ops: list[OpCount] = []
    """Of a worker: what its ops came to."""


class Span(msgspec.Struct, array_like=True):
    """Something that went on for a while for one request. Times are of the process's own clock, in seconds.

    What is done many times is one span: from its first start to its last end, with how often it was done.
    """

    what: str
    """queued, attempt or walk of a conductor; op or transfer of a worker."""
    name: str
    walk: str
    """Of which walk."""
    number: int
    """How many walks of the request came before that one."""
    attempt: int
    start: float
    end: float
    """Infinite while it goes on."""
    calls: int = 0
    busy: float = 0.0
    """For how many seconds it was computed, with others in its batches."""
    waited: float = 0.0
    """For how many seconds its calls were ready and did not run, or it had no worker."""
    batch: int = 0
    """The size of its largest batch."""
    text: str = ""
    """Who took part, or why it was needed."""


class TakeTimeline(Message):
    """What did this request do, and when?"""

    ticket: int
    rid: str


class Timeline(Message):
    """What it did here. `clock` is the time of day when this process's clock was 0, so that hosts can be compared."""

    ticket: int
    clock: float
    spans: list[Span]


# ---------------------------------------------------------------- front end and conductor
class Submit(Message):
    """Serve this request. `patience` is how many seconds it may take in all."""

    rid: str
    model: str
    request: Value
    tenant: str = ""
    patience: float = 600.0
    after: int = -1
    """It was admitted before, and this is the last attempt the client has seen: it is not refused now."""


class Cancel(Message):
    """Nobody wants this request any more."""

    rid: str


class Refused(Message):
    """The request was not taken on; nothing of it has run."""

    rid: str
    status: int
    """As in HTTP: 429 for too many, 503 for nobody there, 400 for one that cannot be served."""
    why: str
    retry_after: float = 0.0


class Finished(Message):
    """The request has ended. It was served whole once the client has `totals` emissions of each kind."""

    rid: str
    status: str
    """ok, failed, cancelled, deadline, poison, not_replayed or unavailable."""
    totals: dict[str, int]
    result: Value
    error: str = ""
    """The type of what went wrong."""
    text: str = ""
    """What it says."""


# ---------------------------------------------------------------- inputs of a walk
class Given(Message):
    """An input that is a value."""

    value: Value


class Held(Message):
    """A state that this worker holds under this number."""

    state: int


class Fresh(Message):
    """A state to be made."""

    component: str
    kind: str


class Coming(Message):
    """A state that another worker will send."""


Input = Given | Held | Fresh | Coming


# ---------------------------------------------------------------- conductor and worker
class Start(Message):
    """Begin your part of a walk."""

    rid: str
    attempt: int
    walk: int
    """How many walks of this request were started before, in this attempt."""
    model: str
    name: str
    """Which walk of the model."""
    seats: tuple[Peer, ...]
    """Who sits where."""
    inputs: dict[int, Input]
    first: dict[str, int]
    """How many emissions of each kind earlier walks have made."""
    front: Peer
    """Who gets the emissions."""
    tenant: str = ""
    """Whose request it is: what states share by content, they share among those of one tenant."""
    careful: int = 0
    """About the so-manieth call of each op it is run alone: it was in a batch that a worker did not survive."""


class End(Message):
    """Drop what you hold for this request, up to and with this attempt, and say so with Released."""

    rid: str
    attempt: int
    keeps_states: bool = False
    """Only its walk is over: the route's states are used by the next attempt."""


class Released(Message):
    """Nothing of this attempt is left here."""

    rid: str
    attempt: int


class Done(Message):
    """A seat has come to the end of its part."""

    rid: str
    attempt: int
    walk: int
    seat: int
    outputs: dict[int, Given | Held]
    states: dict[int, int]
    """Input states whose last version is here, by input, under these numbers."""
    counts: dict[str, int]
    """How many emissions of each kind it made."""


class Failed(Message):
    """The request cannot go on: something it asked for raised this."""

    rid: str
    attempt: int
    error: str
    text: str


class Lost(Message):
    """The request cannot go on here through no fault of its own: something it needs could not be read. Try again."""

    rid: str
    attempt: int
    text: str


class ForkState(Message):
    """Make a copy of a state that a route holds; the conductor numbers it, below zero."""

    rid: str
    attempt: int
    state: int
    copy: int


class FreeStates(Message):
    """The route will not use these any more."""

    rid: str
    attempt: int
    states: tuple[int, ...]


class SendState(Message):
    """Send a state that a route holds to where a walk begins with it."""

    rid: str
    attempt: int
    state: int
    to: Peer
    walk: int
    input: int


class Beat(Message):
    """I am alive, and this is how far I am. A conductor's beat is the lease by which workers may go on."""

    batches: int = 0
    busy: float = 0.0
    """For how many seconds the batch that runs has run."""
    live: int = 0
    """How many requests have something here."""


# ---------------------------------------------------------------- worker and worker
class Passed(Message):
    """A value that another seat made."""

    value: int
    path: tuple[int, ...]
    payload: Value


class Item(Message):
    """The next item of a stream, for one of its readers."""

    reader: int
    path: tuple[int, ...]
    payload: Value


class Closed(Message):
    """Nothing more will come for this reader."""

    reader: int
    path: tuple[int, ...]


class LetGo(Message):
    """A reader is done with the first `count` items of a stream."""

    stream: int
    path: tuple[int, ...]
    reader: int
    count: int


Note = Passed | Item | Closed | LetGo


class Notes(Message):
    """What seats of a walk tell one seat, in order."""

    rid: str
    attempt: int
    walk: int
    seat: int
    notes: list[Note]


class StateInput(Message):
    """A state that a walk here begins with."""

    rid: str
    attempt: int
    walk: int
    input: int
    payload: Value


# ---------------------------------------------------------------- worker and front end
class Emit(Message):
    """An emission for the client: the `index`th of its kind in this request."""

    rid: str
    attempt: int
    kind: str
    index: int
    value: Value
    clock: tuple[tuple[str, int | float], ...] = ()


class Credit(Message):
    """The client has taken so many emissions of a kind: go on."""

    rid: str
    attempt: int
    kind: str
    taken: int


# ---------------------------------------------------------------- launcher and conductor
class Suspect(Message):
    """A request that was in the batch a worker died with, and how many calls of that op it had completed there."""

    rid: str
    attempt: int
    calls: int


class Gone(Message):
    """This life of a process has ended."""

    peer: Peer
    why: str
    suspects: list[Suspect] = []


class Busy(Message):
    """This process computes, whether or not it was heard of: something holds it up that it has to do."""

    peer: Peer


class Kill(Message):
    """This process does not answer: end it, and start it anew."""

    peer: Peer
    why: str


class Ready(Message):
    """Every worker of the placement is there."""


class Drain(Message):
    """Take on nothing new; say Drained when the last request has ended."""


class Drained(Message):
    """Nothing is left to do."""


AnyMessage = (
    Hello
    | Forget
    | TakeStock
    | Stock
    | TakeTimeline
    | Timeline
    | Submit
    | Cancel
    | Refused
    | Finished
    | Start
    | End
    | Released
    | Done
    | Failed
    | Lost
    | ForkState
    | FreeStates
    | SendState
    | Beat
    | Notes
    | StateInput
    | Emit
    | Credit
    | Gone
    | Busy
    | Kill
    | Ready
    | Drain
    | Drained
)
"""What a frame may hold."""
