"""A front end's core: told what happened, it says what to do. No IO, no clock, no threads.

Every emission has a kind and an index, whichever attempt made it. A client gets each once, in order, and only from the
newest attempt; what a later attempt makes again is compared with what was delivered. A stream ends well only when all
of it was delivered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec

from mstar.failpoints import hit
from mstar.walk.client_input import NEVER_INTERRUPTS
from mstar.wire import messages as m
from mstar.wire.frame import UnreadableValue
from mstar.wire.message import MessageReceived, SendMessage, Tick

CREDIT_INTERVAL = 16
"""After how many emissions that a client took its workers are told."""
CHECK_INTERVAL_S = 0.5
"""Seconds between two looks for requests that take too long, or wait for what may be lost."""
MAX_UNREADABLE = 5
"""How many emissions of a request may be unreadable before it is given up: workers die, but not that often."""
DEADLINE_GRACE_S = 2.0
"""So many seconds after a request should have ended its conductor is not waited for any more."""


# ---------------------------------------------------------------- events
@dataclass(frozen=True, slots=True)
class RequestOpened:
    """A client wants something."""

    submit: m.Submit


@dataclass(frozen=True, slots=True)
class InputSent:
    """A client says more, or, with None, that it says no more."""

    rid: str
    value: Any


@dataclass(frozen=True, slots=True)
class OutputsConsumed:
    """A client has taken so many emissions of a kind, in all."""

    rid: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """A client is gone."""

    rid: str


Event = MessageReceived | RequestOpened | InputSent | OutputsConsumed | ClientLeft | Tick


# ---------------------------------------------------------------- actions
@dataclass(frozen=True, slots=True)
class Deliver:
    """Give a client the next emission of a kind."""

    rid: str
    kind: str
    index: int
    value: Any
    clock: tuple[tuple[str, int | float], ...]


@dataclass(frozen=True, slots=True)
class AwaitingInput:
    """All that came of so many things that a client has said was delivered, and more may be said."""

    rid: str
    number: int
    answer: Any


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """Tell a client how its request has ended."""

    rid: str
    end: m.RequestFinished | m.RequestRejected


Action = SendMessage | Deliver | AwaitingInput | RequestEnded


@dataclass(eq=False, slots=True)
class _RequestState:
    """One request of one client."""

    submit: m.Submit
    deadline: float
    attempt: int = -1
    digests: defaultdict[str, list[bytes]] = field(default_factory=lambda: defaultdict[str, list[bytes]](list))
    """What was delivered of each kind."""
    out_of_order: dict[tuple[str, int], m.Emit] = field(default_factory=dict[tuple[str, int], m.Emit])
    """What came before its turn: walks of a request can end on different workers."""
    sources: dict[str, tuple[m.Peer, int]] = field(default_factory=dict[str, tuple[m.Peer, int]])
    """Who makes the emissions of each kind: whoever made the one with the largest index."""
    consumed: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    credited: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    inputs: list[m.ClientInput] = field(default_factory=list[m.ClientInput])
    deferred: list[tuple[m.Peer, m.Emit]] = field(default_factory=list[tuple[m.Peer, m.Emit]])
    """What came since its client spoke, from whom, until it is known what that has cut."""
    fences: dict[int, dict[str, int]] = field(default_factory=dict[int, dict[str, int]])
    """Of attempts before one of these numbers so many emissions are wanted and no more: something of them was cut."""
    turn_finished: m.TurnFinished | None = None
    """What the client is to be told once it has all that came before."""
    answered_inputs: int = -1
    """How many things were answered."""
    end: m.RequestFinished | None = None
    """How it ended, once that is known; perhaps not all is here yet."""
    unreadable: int = 0
    """How many emissions could not be read."""
    is_suspect: bool = False
    """A worker was lost, perhaps with an emission that was on its way."""

    @property
    def is_deferring(self) -> bool:
        """Whether it is not known what the last thing that its client said has cut; until then nothing is looked at."""
        return bool(self.inputs) and self.inputs[-1].walk_index < 0 and self.end is None

    def accepts(self, emit: m.Emit) -> bool:
        """Whether an emission may be given to the client, perhaps later."""
        later = [totals for attempt, totals in self.fences.items() if attempt > emit.attempt]
        is_newest = emit.attempt >= self.attempt
        return all(emit.index < totals.get(emit.kind, 0) for totals in later) if later else is_newest


class FrontendCore:
    """The state of one front end. `digest` makes a few bytes of an emission's value, equal only for equal values."""

    def __init__(self, me: m.Peer, conductors: Mapping[str, m.Peer], digest: Callable[[Any], bytes]) -> None:
        self.me = me
        self.conductors = conductors
        """By model, in its newest life."""
        self._generations = {peer.name: peer.incarnation for peer in conductors.values()}
        """How often each conductor was started before."""
        self.stale_messages = 0
        """How many messages spoke of what is over."""
        self._digest = digest
        self._streams: dict[str, _RequestState] = {}
        self._out: list[Action] = []
        self._last_check = float("-inf")

    def step(self, now: float, event: Event) -> list[Action]:
        """Take note of an event; what to do now, in order."""
        match event:
            case MessageReceived():
                self._receive(event.sender, event.message)
            case RequestOpened():
                stream = self._streams[event.submit.rid] = _RequestState(
                    event.submit, now + event.submit.timeout_s + DEADLINE_GRACE_S
                )
                self._send_to_conductor(stream, event.submit)
            case InputSent():
                self._on_input(event)
            case OutputsConsumed():
                self._on_consumed(event)
            case ClientLeft():
                if (stream := self._streams.pop(event.rid, None)) is not None:
                    self._send_to_conductor(stream, m.Cancel(event.rid))
            case Tick():
                self._tick(now)
            case _:
                assert_never(event)
        out, self._out = self._out, []
        return out

    def stats(self) -> dict[str, int]:
        """What it holds, counted."""
        return {
            "streams": len(self._streams),
            "out_of_order": sum(len(stream.out_of_order) + len(stream.deferred) for stream in self._streams.values()),
        }

    def _send_to_conductor(self, stream: _RequestState, message: m.Message) -> None:
        """Say something of a request to its conductor."""
        self._out.append(SendMessage(_conductor_for(self.conductors, stream), message))

    def _receive(self, sender: m.Peer, message: m.Message) -> None:
        if sender.incarnation > self._generations.get(sender.name, sender.incarnation):
            self._change_conductor(sender)
        match message:
            case m.Emit():
                self._on_emit(sender, message)
            case m.PeerDead():
                for stream in self._streams.values():
                    stream.is_suspect = True
            case m.RequestFinished() | m.RequestRejected() | m.InputAccepted() | m.TurnFinished():
                if (stream := self._streams.get(message.rid)) is not None:
                    self._on_conductor_message(stream, message)
            case _:
                pass  # news of others

    def _on_conductor_message(
        self, stream: _RequestState, message: m.RequestFinished | m.RequestRejected | m.InputAccepted | m.TurnFinished
    ) -> None:
        """A conductor tells something of a request."""
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

    def _change_conductor(self, conductor: m.Peer) -> None:
        """The new one knows nothing: say that this front end is there, and submit again what is open."""
        self._generations[conductor.name] = conductor.incarnation
        self.conductors = {
            model: conductor if one.name == conductor.name else one for model, one in self.conductors.items()
        }
        self._out.append(SendMessage(conductor, m.Register()))
        for stream in self._streams.values():
            if _conductor_for(self.conductors, stream) == conductor:
                self._resubmit(stream)

    def _resubmit(self, stream: _RequestState) -> None:
        stream.end, stream.is_suspect = None, False
        again = {"last_seen_attempt": max(stream.attempt, 0), "inputs": tuple(stream.inputs)}
        stream.submit = msgspec.structs.replace(stream.submit, **again)
        self._send_to_conductor(stream, stream.submit)

    def _on_emit(self, sender: m.Peer, emit: m.Emit) -> None:
        hit("front.emit")
        stream = self._streams.get(emit.rid)
        if stream is not None and stream.is_deferring:
            stream.deferred.append((sender, emit))
            return
        if stream is None or not stream.accepts(emit):
            self.stale_messages += 1
            return
        if emit.attempt > stream.attempt:
            stream.attempt = emit.attempt
            stream.out_of_order = {key: one for key, one in stream.out_of_order.items() if stream.accepts(one)}
            stream.sources.clear()
        source, newest = stream.sources.get(emit.kind, (None, -1))
        if emit.index > newest:
            stream.sources[emit.kind] = (sender, emit.index)
            if sender != source:
                self._send_credit(emit.rid, stream, emit.kind)
        delivered = stream.digests[emit.kind]
        if emit.index >= len(delivered):
            stream.out_of_order[emit.kind, emit.index] = emit
            self._deliver(emit.rid, stream, emit.kind)
        elif self._digest(emit.value.content) != delivered[emit.index]:
            self._fail(emit.rid, "failed", "Diverged", "a worker was lost, and its replacement computed otherwise")

    def _deliver(self, rid: str, stream: _RequestState, kind: str) -> None:
        """Give a client what is there of a kind, in order."""
        delivered = stream.digests[kind]
        while (ready := stream.out_of_order.pop((kind, len(delivered)), None)) is not None:
            if isinstance(ready.value.content, UnreadableValue):
                self._on_unreadable(rid, stream, ready.value.content.text)
                return
            delivered.append(self._digest(ready.value.content))
            self._out.append(Deliver(rid, ready.kind, ready.index, ready.value.content, ready.clock))
        self._finish_if_complete(rid, stream)

    def _release(self, rid: str, stream: _RequestState) -> None:
        """Look at what was held back, now that it can be told what is wanted of it."""
        if not stream.is_deferring:
            held, stream.deferred = stream.deferred, []
            for sender, emit in held:
                self._on_emit(sender, emit)
            if rid in self._streams:
                self._finish_if_complete(rid, stream)

    # ---------------------------------------------------------------- what clients say
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
        stream.out_of_order = {key: one for key, one in stream.out_of_order.items() if stream.accepts(one)}
        self._release(accepted.rid, stream)

    def _on_unreadable(self, rid: str, stream: _RequestState, why: str) -> None:
        """An emission could not be read: have it made again, unless that does not help."""
        stream.unreadable += 1
        if stream.unreadable > MAX_UNREADABLE:
            self._fail(rid, "failed", "Unreadable", why)
        else:
            self._resubmit(stream)

    def _fail(self, rid: str, status: str, error: str, text: str) -> None:
        self._send_to_conductor(self._streams[rid], m.Cancel(rid))
        self._end(rid, m.RequestFinished(rid, status, {}, m.Value(None), error, text))

    def _finish_if_complete(self, rid: str, stream: _RequestState) -> None:
        """End a stream, or say that it waits, if nothing of it is missing, or if more will not come."""
        hit("front.finish")
        answered, end = stream.turn_finished, stream.end
        if answered is not None and _has_all(stream, answered.totals):
            stream.turn_finished, stream.answered_inputs = None, answered.inputs_consumed
            self._out.append(AwaitingInput(rid, answered.inputs_consumed, answered.result.content))
        if end is not None and (end.status != "ok" or _has_all(stream, end.totals)):
            self._end(rid, end)

    def _end(self, rid: str, end: m.RequestFinished | m.RequestRejected) -> None:
        stream = self._streams.pop(rid)
        if stream.submit.last_seen_attempt >= 0:  # this end may have crossed its coming again
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
        stream.credited[kind] = taken = stream.consumed[kind]
        if taken and kind in stream.sources:
            self._out.append(SendMessage(stream.sources[kind][0], m.Credit(rid, stream.attempt, kind, taken)))

    def _tick(self, now: float) -> None:
        if now - self._last_check < CHECK_INTERVAL_S:
            return
        self._last_check = now
        for rid, stream in list(self._streams.items()):
            if now > stream.deadline:
                self._fail(rid, "deadline", "Deadline", "its conductor did not answer in time")
            elif stream.is_suspect and (
                stream.out_of_order or stream.deferred or stream.turn_finished or stream.end
            ):  # it waits
                self._resubmit(stream)


def _conductor_for(conductors: Mapping[str, m.Peer], stream: _RequestState) -> m.Peer:
    """Who conducts a request: any of them refuses one for a model that nobody knows."""
    return conductors.get(stream.submit.model) or next(iter(conductors.values()))


def _has_all(stream: _RequestState, totals: Mapping[str, int]) -> bool:
    """Whether a client was given so many of each kind."""
    return all(len(stream.digests[kind]) >= count for kind, count in totals.items())
