"""Front-end core (sans-IO): exactly-once, in-order delivery of emissions to clients. Events in, actions out.

It does no IO and has no clock or threads: `actor` drives it in production, `sim` in the simulator.

**Attempts.** Each try of a request is an attempt. When a worker or conductor dies, the conductor starts a new attempt
with a larger number, which computes the same emissions again. An emission is identified by kind and index, independent
of the attempt. So delivery is idempotent:

```text
  attempt 1:   Text 0   Text 1   Text 2  ✗ worker dies
  attempt 2:                              Text 0   Text 1   Text 2   Text 3
                 │        │        │        ╎ equal   ╎ equal  ╎ equal  │
  client:      Text 0   Text 1   Text 2  (  digests compared, dropped ) Text 3
```

| emission | action |
|---|---|
| next index of its kind | deliver it, then any that wait behind it |
| later index | hold it in `out_of_order` until the gap is filled |
| index already delivered, same digest | drop it (exactly once) |
| index already delivered, other digest | fail the request with `Diverged`: the client has data of another execution |
| attempt older than the newest one seen | drop it as stale (fencing by attempt number) |
| unreadable value | submit the request again, at most `MAX_UNREADABLE` times |

**Fencing after an interruption.** A client can send more input while the request runs, and that can interrupt a walk.
From then on `is_deferring` is true and new emissions wait in `deferred`, because they can belong to the interrupted
part. The conductor answers with `InputAccepted(attempt, totals)`. This sets a fence: of attempts before `attempt`, only
the first `totals[kind]` emissions are valid. Deferred emissions are then checked against the fence and delivered or
dropped.

**Backpressure.** A worker runs only a limited number of emissions ahead of the client. Every `CREDIT_INTERVAL` consumed
emissions (`OutputsConsumed`), the core sends a `Credit` to the worker that makes the kind.

**End.** A request finishes successfully only once `totals` emissions of each kind were delivered. With more than that,
an earlier attempt computed something else, and it fails with `Diverged`. It is submitted again to a new incarnation of
its conductor, and after a `PeerDead` if an emission is still missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, assert_never

import msgspec

from mstar.failpoints import hit
from mstar.walk.client_input import NEVER_INTERRUPTS
from mstar.wire import messages as m
from mstar.wire.active_clock import ActiveClock
from mstar.wire.frame import UnreadableValue
from mstar.wire.message import MessageReceived, SendMessage, Tick

CREDIT_INTERVAL = 16
"""Consumed emissions of a kind between two credits to a worker."""
CHECK_INTERVAL_S = 0.5
"""Seconds between two checks for requests past their deadline or with lost emissions."""
MAX_UNREADABLE = 5
"""Maximum number of unreadable emissions of a request before it fails. A dying worker causes one at most."""
DEADLINE_GRACE_S = 2.0
"""Seconds after its timeout until a request fails without an answer of its conductor."""
_MIN_HEAP = 64
"""Size up to which the deadlines of requests that have ended stay in the heap."""


# ---------------------------------------------------------------- events
@dataclass(frozen=True, slots=True)
class RequestOpened:
    """A client has sent a request."""

    submit: m.Submit


@dataclass(frozen=True, slots=True)
class InputSent:
    """A client has sent more input to a running request; None ends the input."""

    rid: str
    value: Any


@dataclass(frozen=True, slots=True)
class OutputsConsumed:
    """A client has consumed emissions of a kind."""

    rid: str
    kind: str
    count: int
    """Total since the start of the request."""


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """A client has disconnected or cancelled its request."""

    rid: str


Event = MessageReceived | RequestOpened | InputSent | OutputsConsumed | ClientLeft | Tick


# ---------------------------------------------------------------- actions
class Deliver(msgspec.Struct, frozen=True):  # cheaper to create than a dataclass: there is one per token
    """Deliver the next emission of a kind to the client."""

    rid: str
    kind: str
    index: int
    value: Any
    clock: tuple[tuple[str, int | float], ...]


@dataclass(frozen=True, slots=True)
class AwaitingInput:
    """The turn is finished: everything was delivered, and the request waits for more input."""

    rid: str
    number: int
    """Number of inputs that were answered."""
    answer: Any
    """Result of the turn."""


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """The request has ended."""

    rid: str
    end: m.RequestFinished | m.RequestRejected


Action = SendMessage | Deliver | AwaitingInput | RequestEnded


@dataclass(eq=False, slots=True)
class _RequestState:
    """Delivery state of one request."""

    submit: m.Submit
    deadline: float
    attempt: int = -1
    digests: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict[str, list[Any]](list))
    """Digests of the delivered emissions, by kind. Their number is the next index."""
    out_of_order: dict[tuple[str, int], m.Emit] = field(default_factory=dict[tuple[str, int], m.Emit])
    """Emissions that wait for earlier ones: walks of one request can run on different workers."""
    sources: dict[str, tuple[m.Peer, int]] = field(default_factory=dict[str, tuple[m.Peer, int]])
    """Worker that receives credits, by kind: the sender of the emission with the largest index."""
    consumed: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    """Emissions that the client has consumed, by kind."""
    credited: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    """Consumed emissions in the last credit, by kind."""
    inputs: list[m.ClientInput] = field(default_factory=list[m.ClientInput])
    deferred: list[tuple[m.Peer, m.Emit]] = field(default_factory=list[tuple[m.Peer, m.Emit]])
    """Emissions with their senders that arrived after the last input, until it is known what that interrupted."""
    fences: dict[int, dict[str, int]] = field(default_factory=dict[int, dict[str, int]])
    """Attempt number to valid emission counts by kind. They limit all earlier attempts: a walk was interrupted."""
    turn_finished: m.TurnFinished | None = None
    """End of the turn, until all emissions before it are delivered."""
    answered_inputs: int = -1
    """Number of inputs that were answered; -1 before the first turn ends."""
    end: m.RequestFinished | None = None
    """End of the request, until all emissions before it are delivered."""
    earlier_end: m.RequestFinished | None = None
    """End before a resubmission, until a later attempt is seen: the emissions before it can be late, and not lost."""
    unreadable: int = 0
    """Number of unreadable emissions."""
    deaths_seen: int = 0
    """Deaths of processes when it was submitted: a later one could have had an undelivered emission."""
    number: int = 0
    """Number of requests that were opened before."""

    @property
    def is_incomplete(self) -> bool:
        """Whether something waits for an emission that has not arrived, or for the conductor."""
        return bool(self.out_of_order or self.deferred or self.turn_finished or self.end)

    @property
    def is_ending(self) -> bool:
        """Whether the end of the turn or of the request waits for emissions."""
        return not (self.turn_finished is None and self.end is None and self.earlier_end is None)

    @property
    def is_deferring(self) -> bool:
        """Whether the conductor has not yet accepted the last input, so that it is unknown what it interrupts."""
        return bool(self.inputs) and self.inputs[-1].walk_index < 0 and self.end is None

    def accepts(self, emit: m.Emit) -> bool:
        """Whether an emission is valid: below every fence of a later attempt or, without one, of the newest attempt."""
        if not self.fences:
            return emit.attempt >= self.attempt
        later_fences = [totals for attempt, totals in self.fences.items() if attempt > emit.attempt]
        if later_fences:
            return all(emit.index < totals.get(emit.kind, 0) for totals in later_fences)
        return emit.attempt >= self.attempt


class FrontendCore:
    """State of one front end. `digest` makes what two emissions with the same value have in common, such as a hash."""

    def __init__(self, me: m.Peer, conductors: Mapping[str, m.Peer], digest: Callable[[Any], Any]) -> None:
        self.me = me
        self.conductors = conductors
        """Conductor of each model, in its newest incarnation."""
        self._generations = {peer.name: peer.incarnation for peer in conductors.values()}
        """Newest incarnation of each conductor, by name."""
        self.stale_messages = 0
        """Number of stale emissions that were dropped."""
        self._digest = digest
        self._streams: dict[str, _RequestState] = {}
        self._deadlines: list[tuple[float, str]] = []
        """A heap of the deadlines of requests. Some may have ended."""
        self._incomplete: dict[str, None] = {}
        """Requests that are incomplete, in order. Some may no longer be."""
        self._opened = 0
        """Number of requests that were opened."""
        self._deaths = 0
        """Number of processes that died."""
        self._out: list[Action] = []
        self._last_check = float("-inf")
        self._clock = ActiveClock()

    def step(self, now: float, event: Event) -> list[Action]:
        """Handle an event; return the actions to execute, in order."""
        now = self._clock.advance(now)  # pauses of this process shift all deadlines
        match event:
            case MessageReceived():
                self._receive(event.sender, event.message)
            case RequestOpened():
                deadline = now + event.submit.timeout_s + DEADLINE_GRACE_S
                stream = _RequestState(event.submit, deadline, deaths_seen=self._deaths, number=self._opened)
                self._streams[event.submit.rid] = stream
                self._opened += 1
                heappush(self._deadlines, (deadline, event.submit.rid))
                self._send_to_conductor(stream, event.submit)
            case InputSent():
                self._on_input(event)
            case OutputsConsumed():
                self._on_consumed(event)
            case ClientLeft():
                self._incomplete.pop(event.rid, None)
                if (stream := self._streams.pop(event.rid, None)) is not None:
                    self._send_to_conductor(stream, m.Cancel(event.rid))
            case Tick():
                self._tick(now)
            case _:
                assert_never(event)
        out, self._out = self._out, []
        return out

    def stats(self) -> dict[str, int]:
        """Counts for /metrics."""
        incomplete = [self._streams[rid] for rid in self._incomplete]
        return {
            "streams": len(self._streams),
            "out_of_order": sum(len(stream.out_of_order) + len(stream.deferred) for stream in incomplete),
        }

    def _send_to_conductor(self, stream: _RequestState, message: m.Message) -> None:
        """Send a message about a request to its conductor."""
        self._out.append(SendMessage(_conductor_for(self.conductors, stream), message))

    def _receive(self, sender: m.Peer, message: m.Message) -> None:
        if sender.incarnation > self._generations.get(sender.name, sender.incarnation):
            self._change_conductor(sender)
        match message:
            case m.Emit():
                self._on_emit(sender, message)
            case m.PeerDead():
                self._deaths += 1
            case m.RequestFinished() | m.RequestRejected() | m.InputAccepted() | m.TurnFinished():
                if (stream := self._streams.get(message.rid)) is not None:
                    self._on_conductor_message(stream, message)
            case _:
                pass  # not for a front end

    def _on_conductor_message(
        self, stream: _RequestState, message: m.RequestFinished | m.RequestRejected | m.InputAccepted | m.TurnFinished
    ) -> None:
        stream.earlier_end = None
        match message:
            case m.RequestFinished():
                stream.end = message
                self._release(message.rid, stream)
            case m.RequestRejected():
                self._end(message.rid, message)
            case m.InputAccepted():
                self._on_input_accepted(stream, message)
            case m.TurnFinished():
                if message.inputs_consumed > stream.answered_inputs:
                    stream.turn_finished = message
                    self._finish_if_complete(message.rid, stream)
        if message.rid in self._streams:
            self._incomplete[message.rid] = None

    def _change_conductor(self, conductor: m.Peer) -> None:
        """A conductor has restarted and knows nothing: register with it and submit its open requests again."""
        self._generations[conductor.name] = conductor.incarnation
        self.conductors = {
            model: conductor if peer.name == conductor.name else peer for model, peer in self.conductors.items()
        }
        self._out.append(SendMessage(conductor, m.Register()))
        for stream in self._streams.values():
            if _conductor_for(self.conductors, stream) == conductor:
                self._resubmit(stream)

    def _resubmit(self, stream: _RequestState) -> None:
        stream.earlier_end, stream.end, stream.deaths_seen = stream.end or stream.earlier_end, None, self._deaths
        changes = {"last_seen_attempt": max(stream.attempt, 0), "inputs": tuple(stream.inputs)}
        stream.submit = msgspec.structs.replace(stream.submit, **changes)
        self._send_to_conductor(stream, stream.submit)

    def _on_emit(self, sender: m.Peer, emit: m.Emit) -> None:
        hit("front.emit")
        stream = self._streams.get(emit.rid)
        if stream is not None and stream.is_deferring:
            stream.deferred.append((sender, emit))
            self._incomplete[emit.rid] = None
            return
        if stream is None or not stream.accepts(emit):
            self.stale_messages += 1
            return
        if emit.attempt > stream.attempt:
            stream.attempt, stream.earlier_end = emit.attempt, None
            stream.out_of_order = {key: held for key, held in stream.out_of_order.items() if stream.accepts(held)}
            stream.sources.clear()
        source, newest = stream.sources.get(emit.kind, (None, -1))
        if emit.index > newest:
            stream.sources[emit.kind] = (sender, emit.index)
            if sender != source:
                self._send_credit(emit.rid, stream, emit.kind)
        delivered = stream.digests[emit.kind]
        if emit.index == len(delivered):
            self._deliver(stream, delivered, emit)
        elif emit.index > len(delivered):
            stream.out_of_order[emit.kind, emit.index] = emit
            self._incomplete[emit.rid] = None
            self._finish_if_complete(emit.rid, stream)
        elif self._digest(emit.value.content) != delivered[emit.index]:
            self._fail(emit.rid, "failed", "Diverged", "a worker was lost, and the retry computed other values")

    def _deliver(self, stream: _RequestState, delivered: list[Any], emit: m.Emit) -> None:
        """Deliver an emission that is next in order, and those of its kind that wait behind it."""
        next_emit: m.Emit | None = emit
        while next_emit is not None:
            emit = next_emit
            content = emit.value.content
            if isinstance(content, UnreadableValue):
                self._on_unreadable(emit.rid, stream, content.text)
                return
            delivered.append(self._digest(content))
            self._out.append(Deliver(emit.rid, emit.kind, emit.index, emit.value.content, emit.clock))
            next_emit = stream.out_of_order.pop((emit.kind, len(delivered)), None) if stream.out_of_order else None
        if stream.is_ending:
            self._finish_if_complete(emit.rid, stream)

    def _release(self, rid: str, stream: _RequestState) -> None:
        """Handle deferred emissions, now that the fence is known."""
        if not stream.is_deferring:
            deferred, stream.deferred = stream.deferred, []
            for sender, emit in deferred:
                self._on_emit(sender, emit)
            if rid in self._streams:
                self._finish_if_complete(rid, stream)

    # ---------------------------------------------------------------- client input, ends, credits
    def _on_input(self, event: InputSent) -> None:
        hit("front.input")
        stream = self._streams.get(event.rid)
        if stream is not None:
            counts = {kind: len(delivered) for kind, delivered in stream.digests.items() if delivered}
            number = len(stream.inputs)
            walk = NEVER_INTERRUPTS if stream.answered_inputs == number else -1
            stream.inputs.append(m.ClientInput(event.rid, number, m.Value(event.value), counts, walk))
            self._send_to_conductor(stream, stream.inputs[-1])

    def _on_input_accepted(self, stream: _RequestState, accepted: m.InputAccepted) -> None:
        hit("front.input_accepted")
        stream.inputs[accepted.index] = msgspec.structs.replace(
            stream.inputs[accepted.index], walk_index=accepted.walk_index
        )
        stream.fences.setdefault(accepted.attempt, accepted.totals)
        stream.out_of_order = {key: held for key, held in stream.out_of_order.items() if stream.accepts(held)}
        self._release(accepted.rid, stream)

    def _on_unreadable(self, rid: str, stream: _RequestState, reason: str) -> None:
        """Submit the request again, unless that has failed MAX_UNREADABLE times."""
        stream.unreadable += 1
        if stream.unreadable > MAX_UNREADABLE:
            self._fail(rid, "failed", "Unreadable", reason)
        else:
            self._resubmit(stream)

    def _fail(self, rid: str, status: str, error: str, text: str) -> None:
        self._send_to_conductor(self._streams[rid], m.Cancel(rid))
        self._end(rid, m.RequestFinished(rid, status, {}, m.Value(None), error, text))

    def _finish_if_complete(self, rid: str, stream: _RequestState) -> None:
        """Report the end of the turn or of the request, if every emission before it was delivered."""
        hit("front.finish")
        turn, end = stream.turn_finished, stream.end
        if turn is not None and _has_all(stream, turn.totals):
            stream.turn_finished, stream.answered_inputs = None, turn.inputs_consumed
            self._out.append(AwaitingInput(rid, turn.inputs_consumed, turn.result.content))
        if end is None:
            if (earlier := stream.earlier_end) is not None and _has_all(stream, earlier.totals):
                self._end(rid, earlier)
            return
        if end.status == "ok" and _has_surplus(stream, end.totals):
            self._fail(rid, "failed", "Diverged", "a worker was lost, and the retry computed fewer outputs")
        elif end.status != "ok" or _has_all(stream, end.totals):
            self._end(rid, end)

    def _end(self, rid: str, end: m.RequestFinished | m.RequestRejected) -> None:
        stream = self._streams.pop(rid)
        self._incomplete.pop(rid, None)
        if stream.submit.last_seen_attempt >= 0:  # the end can have crossed a resubmission
            self._send_to_conductor(stream, m.Cancel(rid))
        self._out.append(RequestEnded(rid, end))

    def _on_consumed(self, event: OutputsConsumed) -> None:
        hit("front.consumed")
        stream = self._streams.get(event.rid)
        if stream is not None:
            stream.consumed[event.kind] = event.count
            if event.count - stream.credited[event.kind] >= CREDIT_INTERVAL:
                self._send_credit(event.rid, stream, event.kind)

    def _send_credit(self, rid: str, stream: _RequestState, kind: str) -> None:
        hit("front.credit")
        stream.credited[kind] = consumed = stream.consumed[kind]
        if consumed and kind in stream.sources:
            self._out.append(SendMessage(stream.sources[kind][0], m.Credit(rid, stream.attempt, kind, consumed)))

    def _tick(self, now: float) -> None:
        if now - self._last_check < CHECK_INTERVAL_S:
            return
        self._last_check = now
        rids = [rid for rid in self._incomplete if self._streams[rid].is_incomplete]
        self._incomplete = dict.fromkeys(rids)
        while self._deadlines and self._deadlines[0][0] < now:
            rids.append(heappop(self._deadlines)[1])
        streams = {rid: self._streams[rid] for rid in rids if rid in self._streams}  # not all: most are idle
        for rid, stream in sorted(streams.items(), key=lambda item: item[1].number):
            if now > stream.deadline:
                self._fail(rid, "deadline", "Deadline", "the conductor did not answer in time")
            elif stream.deaths_seen < self._deaths and stream.is_incomplete:  # something is missing, and can be lost
                self._resubmit(stream)
        if len(self._deadlines) > 2 * len(self._streams) + _MIN_HEAP:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._streams]
            heapify(self._deadlines)


def _conductor_for(conductors: Mapping[str, m.Peer], stream: _RequestState) -> m.Peer:
    """Conductor of a request. For an unknown model any conductor: it rejects the request."""
    return conductors.get(stream.submit.model) or next(iter(conductors.values()))


def _has_all(stream: _RequestState, totals: Mapping[str, int]) -> bool:
    """Whether all these emissions were delivered."""
    return all(len(stream.digests[kind]) >= count for kind, count in totals.items())


def _has_surplus(stream: _RequestState, totals: Mapping[str, int]) -> bool:
    """Whether more emissions were delivered than the attempt that finished has made."""
    return any(len(digests) > totals.get(kind, 0) for kind, digests in stream.digests.items())
