"""All messages between front ends, conductors, workers and the launcher.

The set is closed: a frame decodes to one of `AnyMessage` or is rejected. `Value` is the only field type with open
content (prompt, tensor, result). Within a process it is passed by reference, between processes a codec encodes it.

An *attempt* numbers the tries of one request. The conductor's generation is in its high bits, so that a later attempt
always has a larger number. Messages of superseded attempts are ignored.
"""

from __future__ import annotations

from mstar.plan.runtime.messages import PartitionMessage
from mstar.wire.failure import NO_FAILURE, Failure
from mstar.wire.message import Message, Peer, Value
from mstar.wire.message import process_names as process_names
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
from mstar.wire.supervision import (
    DeploymentReport,
    Drain,
    Drained,
    Kill,
    ProcessExited,
    Ready,
    RolloutFailed,
    RollWeights,
    StartWorker,
    StillComputing,
    StopWorker,
    WeightsRolled,
)
from mstar.wire.supervision import ExitCause as ExitCause
from mstar.wire.supervision import Suspect as Suspect


# ---------------------------------------------------------------- all processes
class Register(Message):
    """Announces an incarnation: sent by a starting process, and by a new conductor to all its peers."""

    components: tuple[str, ...] = ()
    """Workers only: loaded components, each as "model.component"."""
    weights_version: int = 0
    """Workers only: version of the loaded weights."""
    devices: dict[str, str] = {}
    """Workers only: torch device of each loaded component, as the placement calls it."""
    nondeterminism: dict[str, str] = {}
    """Workers only: why results of a component can depend on the batch, for each component where they can."""


class PeerDead(Message):
    """A peer incarnation is dead: free everything kept for it."""

    peer: Peer


class PeerAddress(Message):
    """Address of a peer on another host, for the address book of the receiver."""

    peer: Peer
    address: str


# ---------------------------------------------------------------- front end and conductor
class ClientInput(Message):
    """Further input of the client to a running request; None closes its input."""

    rid: str
    index: int
    """Number of earlier inputs of this request."""
    value: Value
    received_counts: dict[str, int]
    """Emissions of each kind that the client had received when it sent this."""
    walk_index: int = -1
    """Walk at which it was accepted; -1 if not known: see `InputAccepted`."""


class InputAccepted(Message):
    """The conductor has accepted a client input.

    If the input interrupted a walk, that walk is over, and its emissions beyond `totals` must be dropped.
    """

    rid: str
    index: int
    """Index of the accepted input."""
    walk_index: int
    """Index of the walk during which, or before which, it was accepted."""
    attempt: int
    """The attempt that continues. Of earlier attempts only the emissions counted in `totals` are valid."""
    totals: dict[str, int]
    """Emissions of each kind made by finished walks."""


class TurnFinished(Message):
    """The route has consumed `inputs_consumed` inputs and waits for the next one. `totals` emissions exist so far."""

    rid: str
    inputs_consumed: int
    totals: dict[str, int]
    result: Value


class Submit(Message):
    """Serve a request. `timeout_s` is its total time limit."""

    rid: str
    model: str
    request: Value
    tenant: str = ""
    timeout_s: float = 600.0
    last_seen_attempt: int = -1
    """Last attempt that the client saw, if the request was admitted before: then it skips admission control."""
    inputs: tuple[ClientInput, ...] = ()
    """Inputs since the submission, in case the conductor is new and does not have them."""
    slo: Slo = Slo()
    """Latency objective of the request."""


class UnloadModel(Message):
    """Stop the workers of a model after their requests finish. The reply is a ModelStatusReply."""

    correlation_id: int
    model: str


class LoadModel(Message):
    """Start the workers of an unloaded model. The reply is a ModelStatusReply."""

    correlation_id: int
    model: str


class Cancel(Message):
    """Cancel a request: the client has left."""

    rid: str


class RequestRejected(Message):
    """The request was rejected by admission control; no part of it has run."""

    rid: str
    status: int
    """HTTP status: 429 if over the limit, 503 if no worker is available, 400 or 404 if it cannot be served."""
    reason: str
    retry_after_s: float = 0.0


class RequestFinished(Message):
    """Final status of a request. The response is complete once the client has `totals` emissions of each kind."""

    rid: str
    status: str
    """ok, failed, cancelled, deadline, poison, not_retryable or unavailable."""
    totals: dict[str, int]
    result: Value
    error_type: str = ""
    """Exception type; empty on success."""
    error_message: str = ""
    """Exception text; empty on success."""
    failure: Failure = NO_FAILURE
    """Where the exception was raised. For the log of the front end, not for the client."""


# ---------------------------------------------------------------- inputs of a walk
class ValueInput(Message):
    """A walk input that is a plain value."""

    value: Value


class LocalState(Message):
    """A walk input that is a state of this worker, by number."""

    state: int


class NewState(Message):
    """A walk input that is a state to create."""

    component: str
    kind: str


class IncomingState(Message):
    """A walk input that is a state in transfer from another worker."""


WalkInput = ValueInput | LocalState | NewState | IncomingState


# ---------------------------------------------------------------- conductor and worker
class StartWalk(Message):
    """Start one or more partitions of a walk at this worker."""

    rid: str
    attempt: int
    walk_index: int
    """Number of walks started before, in this attempt. Below 0: a lookahead, which runs in idle time and can be dropped
    until it is committed."""
    model: str
    walk_name: str
    """Name of the walk."""
    seats: tuple[Peer, ...]
    """Worker of each partition."""
    inputs: dict[int, WalkInput]
    emitted_counts: dict[str, int]
    """Emissions of each kind made by earlier walks."""
    frontend: Peer
    """Receiver of the emissions."""
    tenant: str = ""
    """Tenant of the request. States share content (prefix cache) only within one tenant."""
    isolate_at_call: int = 0
    """Run calls near this index in isolation, without batching: the request is a crash suspect. 0: no isolation."""
    slo: Slo = Slo()
    """Latency objective of the request."""
    first_due_in_s: float = 0.0
    """Seconds until the first emission is due, for each kind with no emission so far."""
    due_in_s: dict[str, float] = {}
    """Seconds until the client runs out of output, for each kind that has started."""
    predicted_ttft_s: float = 0.0
    """Time to first output that was predicted at admission, in seconds; 0 if unknown."""
    next_workers: dict[int, Peer] = {}
    """By input index, the worker to which a state probably moves for the next walk: parts of it are sent ahead."""


class ReleaseAttempt(Message):
    """Free everything held for a request, up to and including this attempt. The reply is AttemptReleased."""

    rid: str
    attempt: int
    keep_states: bool = False
    """Keep the states of the route for the next attempt; only the walk is over."""
    can_wait: bool = False
    """Whether the reply can wait for other messages to the conductor, because enough requests can start without it."""


class AttemptReleased(Message):
    """The worker has freed everything of this attempt."""

    rid: str
    attempt: int
    can_wait: bool = False
    """That of the ReleaseAttempt."""


class SeatDone(Message):
    """A partition of a walk has finished."""

    rid: str
    attempt: int
    walk_index: int
    seat: int
    outputs: dict[int, ValueInput | LocalState]
    states: dict[int, int]
    """Numbers of the input states whose last version is at this worker, by input."""
    emission_counts: dict[str, int]
    """Emissions of each kind made by this partition."""
    due_in_s: dict[str, float] = {}
    """Seconds until the client runs out of output, by kind."""


class AttemptFailed(Message):
    """The attempt failed: an op or the route raised this exception."""

    rid: str
    attempt: int
    error_type: str
    error_message: str
    failure: Failure = NO_FAILURE


class RetryNeeded(Message):
    """The attempt failed because of the infrastructure (an input could not be read): retry it."""

    rid: str
    attempt: int
    reason: str


class ForkState(Message):
    """Copy a state that a route holds. The conductor numbers the copy, below zero."""

    rid: str
    attempt: int
    state: int
    new_state: int


class FreeStates(Message):
    """Free states that the route does not use any more."""

    rid: str
    attempt: int
    states: tuple[int, ...]


class SendState(Message):
    """Send a state of a route to the worker where a walk starts with it."""

    rid: str
    attempt: int
    state: int
    to: Peer
    walk_index: int
    input_index: int


class CommitLookahead(Message):
    """The route needs a lookahead: it is an ordinary walk from now on, and the route holds its states."""

    rid: str
    attempt: int
    walk_index: int


class DropLookahead(Message):
    """The route does not need a lookahead: free everything held for it."""

    rid: str
    attempt: int
    walk_index: int


class LookaheadLost(Message):
    """The worker has dropped a lookahead that had not finished: it failed, or its memory was needed."""

    rid: str
    attempt: int
    walk_index: int


class Heartbeat(Message):
    """Heartbeat. A conductor's heartbeat renews the lease without which workers stop."""

    batch_running_s: float = 0.0
    """Seconds since the current batch started, without pauses of the worker."""
    load: WorkerLoad | None = None
    """Workers only: current load."""
    batch_expected_s: float = 0.0
    """Predicted duration of the current batch; 0 if unknown."""


# ---------------------------------------------------------------- worker and worker
class DataBatch(Message):
    """Messages for one partition of a walk, in order. Their payloads are wrapped in `Value`."""

    rid: str
    attempt: int
    walk_index: int
    events: list[PartitionMessage]
    due_in_s: dict[str, float] = {}
    """Seconds until the client runs out of output, for each kind that this partition makes."""


class StateInput(Message):
    """A state in transfer, as input of a walk at this worker."""

    rid: str
    attempt: int
    walk_index: int
    input_index: int
    payload: Value


class StateAhead(Message):
    """A part of a state that the receiver will probably get: sent while the rest of it is computed, and best effort."""

    model: str
    payload: Value


# ---------------------------------------------------------------- worker and front end
class Emit(Message):
    """An output for the client: number `index` of its kind in this request."""

    rid: str
    attempt: int
    kind: str
    index: int
    value: Value
    clock: tuple[tuple[str, int | float], ...] = ()


class Credit(Message):
    """Flow control: the client has consumed this number of emissions of a kind."""

    rid: str
    attempt: int
    kind: str
    consumed: int


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
    | CommitLookahead
    | DropLookahead
    | LookaheadLost
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
    | RolloutFailed
    | Ready
    | DeploymentReport
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
    | StateAhead
    | Emit
    | Credit
    | LauncherMessage
)
"""The closed set of messages that a frame can carry."""
LIVENESS_MESSAGES = (Heartbeat, StillComputing)
"""Messages that can be lost, because the next one replaces them. A frame of them only is not acknowledged."""
