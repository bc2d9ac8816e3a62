"""Every message that front ends, conductors, workers and the launcher send each other.

The set is closed: what is not here cannot be said. A `Value` is the one field whose type is open: a prompt, a tensor, a
result. Inside a process it goes by reference; whoever writes frames is given a codec for it.

An *attempt* numbers the tries at one request: the conductor's generation in its high bits, so that a later one is
always larger. Whatever speaks of an attempt that is over is ignored.
"""

from __future__ import annotations

from mstar.plan.runtime.messages import PartitionMessage
from mstar.wire.message import Message, Peer, Value
from mstar.wire.queries import (
    ActivityQuery,
    ActivityReply,
    ModelStatusQuery,
    ModelStatusReply,
    SpansQuery,
    SpansReply,
    StatsQuery,
    StatsReply,
)
from mstar.wire.slo import Slo
from mstar.wire.stats import WorkerLoad


# ---------------------------------------------------------------- everybody
class Register(Message):
    """I am here, in this life: sent by who starts, and by a new conductor to everyone. A worker tells what it holds."""

    components: tuple[str, ...] = ()
    """Of a worker: the components that are loaded, each as "model.component"."""
    weights_version: int = 0
    """Of a worker: which edition of the weights it has loaded."""


class PeerDead(Message):
    """This life of a process is over: keep nothing for it."""

    peer: Peer


class PeerAddress(Message):
    """A process of another host is there, and found at this address."""

    peer: Peer
    address: str


# ---------------------------------------------------------------- front end and conductor
class ClientInput(Message):
    """The client says more to a request that runs, or, with None, that it says no more."""

    rid: str
    index: int
    """How many things it said before."""
    value: Value
    received_counts: dict[str, int]
    """How many emissions of each kind it had when it said so."""
    walk_index: int = -1
    """When it was heard, if that is known: see `Heard`."""


class InputAccepted(Message):
    """A client was heard. If it cut a walk, that is over, and what it emitted beyond `totals` is not wanted."""

    rid: str
    index: int
    """Which of the things that it said."""
    walk_index: int
    """When: while the walk with this number ran, or before it."""
    attempt: int
    """The attempt that goes on: those before make nothing that is wanted, but what `totals` counts."""
    totals: dict[str, int]
    """How many emissions of each kind walks that are over have made."""


class TurnFinished(Message):
    """The route has done what it was told, so many things, and waits for more. By then there are `totals` emissions."""

    rid: str
    inputs_consumed: int
    totals: dict[str, int]
    result: Value


class Submit(Message):
    """Serve this request. `patience` is how many seconds it may take in all."""

    rid: str
    model: str
    request: Value
    tenant: str = ""
    timeout_s: float = 600.0
    last_seen_attempt: int = -1
    """It was admitted before, and this is the last attempt the client has seen: it is not refused now."""
    inputs: tuple[ClientInput, ...] = ()
    """What its client has said since, if a conductor may not know that."""
    slo: Slo = Slo()
    """What its client is promised."""


class UnloadModel(Message):
    """Have the workers of a model ended once nobody uses them. It is answered with a Standing."""

    correlation_id: int
    model: str


class LoadModel(Message):
    """Have the workers of a model started again. It is answered with a Standing."""

    correlation_id: int
    model: str


class Cancel(Message):
    """Nobody wants this request any more."""

    rid: str


class RequestRejected(Message):
    """The request was not taken on; nothing of it has run."""

    rid: str
    status: int
    """As in HTTP: 429 for too many, 503 for nobody there, 400 for one that cannot be served."""
    reason: str
    retry_after_s: float = 0.0


class RequestFinished(Message):
    """The request has ended. It was served whole once the client has `totals` emissions of each kind."""

    rid: str
    status: str
    """ok, failed, cancelled, deadline, poison, not_retryable or unavailable."""
    totals: dict[str, int]
    result: Value
    error_type: str = ""
    """The type of what went wrong."""
    error_message: str = ""
    """What it says."""


# ---------------------------------------------------------------- inputs of a walk
class ValueInput(Message):
    """An input that is a value."""

    value: Value


class LocalState(Message):
    """A state that this worker holds under this number."""

    state: int


class NewState(Message):
    """A state to be made."""

    component: str
    kind: str


class IncomingState(Message):
    """A state that another worker will send."""


WalkInput = ValueInput | LocalState | NewState | IncomingState


# ---------------------------------------------------------------- conductor and worker
class StartWalk(Message):
    """Begin your part of a walk."""

    rid: str
    attempt: int
    walk_index: int
    """How many walks of this request were started before, in this attempt."""
    model: str
    walk_name: str
    """Which walk of the model."""
    seats: tuple[Peer, ...]
    """Who sits where."""
    inputs: dict[int, WalkInput]
    emitted_counts: dict[str, int]
    """How many emissions of each kind earlier walks have made."""
    frontend: Peer
    """Who gets the emissions."""
    tenant: str = ""
    """Whose request it is: what states share by content, they share among those of one tenant."""
    isolate_at_call: int = 0
    """About the so-manieth call of each op it is run alone: it was in a batch that a worker did not survive."""
    slo: Slo = Slo()
    """What its client is promised."""
    first_due_in_s: float = 0.0
    """In how many seconds the client should have the first emission of each kind that it has nothing of."""
    due_in_s: dict[str, float] = {}
    """In how many seconds it will have nothing left, of each kind that has begun."""
    predicted_ttft_s: float = 0.0
    """In how many seconds it was thought that the first emission will come, when it was taken on; 0 if not known."""


class ReleaseAttempt(Message):
    """Drop what you hold for this request, up to and with this attempt, and say so with Released."""

    rid: str
    attempt: int
    keep_states: bool = False
    """Only its walk is over: the route's states are used by the next attempt."""


class AttemptReleased(Message):
    """Nothing of this attempt is left here."""

    rid: str
    attempt: int


class SeatDone(Message):
    """A seat has come to the end of its part."""

    rid: str
    attempt: int
    walk_index: int
    seat: int
    outputs: dict[int, ValueInput | LocalState]
    states: dict[int, int]
    """Input states whose last version is here, by input, under these numbers."""
    emission_counts: dict[str, int]
    """How many emissions of each kind it made."""
    due_in_s: dict[str, float] = {}
    """In how many seconds the client will have nothing left, of each kind."""


class AttemptFailed(Message):
    """The request cannot go on: something it asked for raised this."""

    rid: str
    attempt: int
    error_type: str
    error_message: str


class RetryNeeded(Message):
    """The request cannot go on here through no fault of its own: something it needs could not be read. Try again."""

    rid: str
    attempt: int
    reason: str


class ForkState(Message):
    """Make a copy of a state that a route holds; the conductor numbers it, below zero."""

    rid: str
    attempt: int
    state: int
    new_state: int


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
    walk_index: int
    input_index: int


class Heartbeat(Message):
    """I am alive. A conductor's beat is the lease by which workers may go on."""

    batch_running_s: float = 0.0
    """For how many seconds the batch that runs has run."""
    load: WorkerLoad | None = None
    """Of a worker: what it has to do."""


# ---------------------------------------------------------------- worker and worker
class DataBatch(Message):
    """Messages for one partition of a walk, in order. Their payloads are wrapped in `Value`."""

    rid: str
    attempt: int
    walk_index: int
    events: list[PartitionMessage]
    due_in_s: dict[str, float] = {}
    """In how many seconds the client will have nothing left, of each kind that is made here."""


class StateInput(Message):
    """A state that a walk here begins with."""

    rid: str
    attempt: int
    walk_index: int
    input_index: int
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
    consumed: int


# ---------------------------------------------------------------- launcher and conductor
class Suspect(Message):
    """A request that was in the batch a worker died with, and how many calls of that op it had completed there."""

    rid: str
    attempt: int
    calls_completed: int


class ProcessExited(Message):
    """This life of a process has ended."""

    peer: Peer
    reason: str
    suspects: list[Suspect] = []


class StillComputing(Message):
    """This process computes, whether or not it was heard of: something holds it up that it has to do."""

    peer: Peer


class Kill(Message):
    """This process does not answer: end it, and start it anew."""

    peer: Peer
    reason: str


class StartWorker(Message):
    """This worker is needed: start it, if it does not run."""

    worker: str


class StopWorker(Message):
    """Nobody uses this worker any more: end it, and start it again only when it is wanted."""

    peer: Peer


class RollWeights(Message):
    """There is a new edition of the weights: workers that are started from now on load it; replace the others."""

    weights_version: int


class WeightsRolled(Message):
    """Every worker has this edition."""

    weights_version: int


class Ready(Message):
    """Every worker of the placement is there."""


class Drain(Message):
    """Take on nothing new; say Drained when the last request has ended."""


class Drained(Message):
    """Nothing is left to do."""


FrontendMessage = (
    ClientInput
    | InputAccepted
    | TurnFinished
    | Submit
    | UnloadModel
    | LoadModel
    | Cancel
    | RequestRejected
    | RequestFinished
)
WorkerMessage = (
    StartWalk
    | ReleaseAttempt
    | AttemptReleased
    | SeatDone
    | AttemptFailed
    | RetryNeeded
    | ForkState
    | FreeStates
    | SendState
    | Heartbeat
)
LauncherMessage = (
    ProcessExited
    | StillComputing
    | Kill
    | StartWorker
    | StopWorker
    | RollWeights
    | WeightsRolled
    | Ready
    | Drain
    | Drained
)
QueryMessage = (
    StatsQuery
    | StatsReply
    | SpansQuery
    | SpansReply
    | ActivityQuery
    | ActivityReply
    | ModelStatusQuery
    | ModelStatusReply
)
AnyMessage = (
    Register
    | PeerDead
    | PeerAddress
    | QueryMessage
    | FrontendMessage
    | WorkerMessage
    | DataBatch
    | StateInput
    | Emit
    | Credit
    | LauncherMessage
)
"""What a frame may hold."""
