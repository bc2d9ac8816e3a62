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
from mstar.walk.said import AWAITED
from mstar.wire import messages as m
from mstar.wire.frame import Unreadable
from mstar.wire.steps import Received, Send, Tick

GRANT = 16
"""After how many emissions that a client took its workers are told."""
LOOK = 0.5
"""Seconds between two looks for requests that take too long, or wait for what may be lost."""
MISSED = 5
"""How many emissions of a request may be unreadable before it is given up: workers die, but not that often."""
SLACK = 2.0
"""So many seconds after a request should have ended its conductor is not waited for any more."""


# ---------------------------------------------------------------- events
@dataclass(frozen=True, slots=True)
class Opened:
    """A client wants something."""

    submit: m.Submit


@dataclass(frozen=True, slots=True)
class Told:
    """A client says more, or, with None, that it says no more."""

    rid: str
    value: Any


@dataclass(frozen=True, slots=True)
class Took:
    """A client has taken so many emissions of a kind, in all."""

    rid: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class Left:
    """A client is gone."""

    rid: str


Event = Received | Opened | Told | Took | Left | Tick


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
class Waits:
    """All that came of so many things that a client has said was delivered, and more may be said."""

    rid: str
    number: int
    answer: Any


@dataclass(frozen=True, slots=True)
class Ended:
    """Tell a client how its request has ended."""

    rid: str
    end: m.Finished | m.Refused


Action = Send | Deliver | Waits | Ended


@dataclass(eq=False, slots=True)
class _Stream:
    """One request of one client."""

    submit: m.Submit
    deadline: float
    attempt: int = -1
    digests: defaultdict[str, list[bytes]] = field(default_factory=lambda: defaultdict[str, list[bytes]](list))
    """What was delivered of each kind."""
    ahead: dict[tuple[str, int], m.Emit] = field(default_factory=dict[tuple[str, int], m.Emit])
    """What came before its turn: walks of a request can end on different workers."""
    sources: dict[str, tuple[m.Peer, int]] = field(default_factory=dict[str, tuple[m.Peer, int]])
    """Who makes the emissions of each kind: whoever made the one with the largest index."""
    taken: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    granted: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    said: list[m.Say] = field(default_factory=list[m.Say])
    held: list[tuple[m.Peer, m.Emit]] = field(default_factory=list[tuple[m.Peer, m.Emit]])
    """What came since its client spoke, from whom, until it is known what that has cut."""
    fences: dict[int, dict[str, int]] = field(default_factory=dict[int, dict[str, int]])
    """Of attempts before one of these numbers so many emissions are wanted and no more: something of them was cut."""
    answered: m.Answered | None = None
    """What the client is to be told once it has all that came before."""
    waits: int = -1
    """How many things were answered."""
    end: m.Finished | None = None
    """How it ended, once that is known; perhaps not all is here yet."""
    missed: int = 0
    """How many emissions could not be read."""
    is_doubtful: bool = False
    """A worker was lost, perhaps with an emission that was on its way."""

    @property
    def is_held(self) -> bool:
        """Whether it is not known what the last thing that its client said has cut; until then nothing is looked at."""
        return bool(self.said) and self.said[-1].walk < 0 and self.end is None

    def wants(self, emit: m.Emit) -> bool:
        """Whether an emission may be given to the client, perhaps later."""
        later = [totals for attempt, totals in self.fences.items() if attempt > emit.attempt]
        is_newest = emit.attempt >= self.attempt
        return all(emit.index < totals.get(emit.kind, 0) for totals in later) if later else is_newest


class FrontCore:
    """The state of one front end. `digest` makes a few bytes of an emission's value, equal only for equal values."""

    def __init__(self, me: m.Peer, conductors: Mapping[str, m.Peer], digest: Callable[[Any], bytes]) -> None:
        self.me = me
        self.conductors = conductors
        """By model, in its newest life."""
        self._generations = {peer.name: peer.incarnation for peer in conductors.values()}
        """How often each conductor was started before."""
        self.late = 0
        """How many messages spoke of what is over."""
        self._digest = digest
        self._streams: dict[str, _Stream] = {}
        self._out: list[Action] = []
        self._looked = float("-inf")

    def step(self, now: float, event: Event) -> list[Action]:
        """Take note of an event; what to do now, in order."""
        match event:
            case Received():
                self._receive(event.sender, event.message)
            case Opened():
                stream = self._streams[event.submit.rid] = _Stream(event.submit, now + event.submit.patience + SLACK)
                self._ask(stream, event.submit)
            case Told():
                self._say(event)
            case Took():
                self._took(event)
            case Left():
                if (stream := self._streams.pop(event.rid, None)) is not None:
                    self._ask(stream, m.Cancel(event.rid))
            case Tick():
                self._tick(now)
            case _:
                assert_never(event)
        out, self._out = self._out, []
        return out

    def stock(self) -> dict[str, int]:
        """What it holds, counted."""
        return {
            "streams": len(self._streams),
            "ahead": sum(len(stream.ahead) + len(stream.held) for stream in self._streams.values()),
        }

    def _ask(self, stream: _Stream, message: m.Message) -> None:
        """Say something of a request to its conductor."""
        self._out.append(Send(_conductor(self.conductors, stream), message))

    def _receive(self, sender: m.Peer, message: m.Message) -> None:
        if sender.incarnation > self._generations.get(sender.name, sender.incarnation):
            self._change_conductor(sender)
        match message:
            case m.Emit():
                self._emit(sender, message)
            case m.Forget():
                for stream in self._streams.values():
                    stream.is_doubtful = True
            case m.Finished() | m.Refused() | m.Heard() | m.Answered():
                if (stream := self._streams.get(message.rid)) is not None:
                    self._hear(stream, message)
            case _:
                pass  # news of others

    def _hear(self, stream: _Stream, message: m.Finished | m.Refused | m.Heard | m.Answered) -> None:
        """A conductor tells something of a request."""
        match message:
            case m.Finished():
                stream.end = message
                self._release(message.rid, stream)
            case m.Refused():
                self._end(message.rid, message)
            case m.Heard():
                self._heard(stream, message)
            case m.Answered():
                if message.number > stream.waits:
                    stream.answered = message
                    self._conclude(message.rid, stream)

    def _change_conductor(self, conductor: m.Peer) -> None:
        """The new one knows nothing: say that this front end is there, and submit again what is open."""
        self._generations[conductor.name] = conductor.incarnation
        self.conductors = {
            model: conductor if one.name == conductor.name else one for model, one in self.conductors.items()
        }
        self._out.append(Send(conductor, m.Hello()))
        for stream in self._streams.values():
            if _conductor(self.conductors, stream) == conductor:
                self._submit_again(stream)

    def _submit_again(self, stream: _Stream) -> None:
        stream.end, stream.is_doubtful = None, False
        again = {"after": max(stream.attempt, 0), "said": tuple(stream.said)}
        stream.submit = msgspec.structs.replace(stream.submit, **again)
        self._ask(stream, stream.submit)

    def _emit(self, sender: m.Peer, emit: m.Emit) -> None:
        hit("front.emit")
        stream = self._streams.get(emit.rid)
        if stream is not None and stream.is_held:
            stream.held.append((sender, emit))
            return
        if stream is None or not stream.wants(emit):
            self.late += 1
            return
        if emit.attempt > stream.attempt:
            stream.attempt = emit.attempt
            stream.ahead = {key: one for key, one in stream.ahead.items() if stream.wants(one)}
            stream.sources.clear()
        source, newest = stream.sources.get(emit.kind, (None, -1))
        if emit.index > newest:
            stream.sources[emit.kind] = (sender, emit.index)
            if sender != source:
                self._grant(emit.rid, stream, emit.kind)
        delivered = stream.digests[emit.kind]
        if emit.index >= len(delivered):
            stream.ahead[emit.kind, emit.index] = emit
            self._deliver(emit.rid, stream, emit.kind)
        elif self._digest(emit.value.it) != delivered[emit.index]:
            self._fail(emit.rid, "failed", "Diverged", "a worker was lost, and its replacement computed otherwise")

    def _deliver(self, rid: str, stream: _Stream, kind: str) -> None:
        """Give a client what is there of a kind, in order."""
        delivered = stream.digests[kind]
        while (ready := stream.ahead.pop((kind, len(delivered)), None)) is not None:
            if isinstance(ready.value.it, Unreadable):
                self._miss(rid, stream, ready.value.it.text)
                return
            delivered.append(self._digest(ready.value.it))
            self._out.append(Deliver(rid, ready.kind, ready.index, ready.value.it, ready.clock))
        self._conclude(rid, stream)

    def _release(self, rid: str, stream: _Stream) -> None:
        """Look at what was held back, now that it can be told what is wanted of it."""
        if not stream.is_held:
            held, stream.held = stream.held, []
            for sender, emit in held:
                self._emit(sender, emit)
            if rid in self._streams:
                self._conclude(rid, stream)

    # ---------------------------------------------------------------- what clients say
    def _say(self, told: Told) -> None:
        hit("front.say")
        stream = self._streams.get(told.rid)
        if stream is not None:
            counts = {kind: len(delivered) for kind, delivered in stream.digests.items() if delivered}
            number = len(stream.said)
            walk = AWAITED if stream.waits == number else -1
            stream.said.append(m.Say(told.rid, number, m.Value(told.value), counts, walk))
            self._ask(stream, stream.said[-1])

    def _heard(self, stream: _Stream, heard: m.Heard) -> None:
        hit("front.heard")
        stream.said[heard.number] = msgspec.structs.replace(stream.said[heard.number], walk=heard.walk)
        stream.fences.setdefault(heard.attempt, heard.totals)
        stream.ahead = {key: one for key, one in stream.ahead.items() if stream.wants(one)}
        self._release(heard.rid, stream)

    def _miss(self, rid: str, stream: _Stream, why: str) -> None:
        """An emission could not be read: have it made again, unless that does not help."""
        stream.missed += 1
        if stream.missed > MISSED:
            self._fail(rid, "failed", "Unreadable", why)
        else:
            self._submit_again(stream)

    def _fail(self, rid: str, status: str, error: str, text: str) -> None:
        self._ask(self._streams[rid], m.Cancel(rid))
        self._end(rid, m.Finished(rid, status, {}, m.Value(None), error, text))

    def _conclude(self, rid: str, stream: _Stream) -> None:
        """End a stream, or say that it waits, if nothing of it is missing, or if more will not come."""
        hit("front.conclude")
        answered, end = stream.answered, stream.end
        if answered is not None and _has_all(stream, answered.totals):
            stream.answered, stream.waits = None, answered.number
            self._out.append(Waits(rid, answered.number, answered.answer.it))
        if end is not None and (end.status != "ok" or _has_all(stream, end.totals)):
            self._end(rid, end)

    def _end(self, rid: str, end: m.Finished | m.Refused) -> None:
        stream = self._streams.pop(rid)
        if stream.submit.after >= 0:  # this end may have crossed its coming again
            self._ask(stream, m.Cancel(rid))
        self._out.append(Ended(rid, end))

    def _took(self, event: Took) -> None:
        hit("front.took")
        stream = self._streams.get(event.rid)
        if stream is not None:
            stream.taken[event.kind] = event.count
            if event.count - stream.granted[event.kind] >= GRANT:
                self._grant(event.rid, stream, event.kind)

    def _grant(self, rid: str, stream: _Stream, kind: str) -> None:
        hit("front.grant")
        stream.granted[kind] = taken = stream.taken[kind]
        if taken and kind in stream.sources:
            self._out.append(Send(stream.sources[kind][0], m.Credit(rid, stream.attempt, kind, taken)))

    def _tick(self, now: float) -> None:
        if now - self._looked < LOOK:
            return
        self._looked = now
        for rid, stream in list(self._streams.items()):
            if now > stream.deadline:
                self._fail(rid, "deadline", "Deadline", "its conductor did not answer in time")
            elif stream.is_doubtful and (stream.ahead or stream.held or stream.answered or stream.end):  # it waits
                self._submit_again(stream)


def _conductor(conductors: Mapping[str, m.Peer], stream: _Stream) -> m.Peer:
    """Who conducts a request: any of them refuses one for a model that nobody knows."""
    return conductors.get(stream.submit.model) or next(iter(conductors.values()))


def _has_all(stream: _Stream, totals: Mapping[str, int]) -> bool:
    """Whether a client was given so many of each kind."""
    return all(len(stream.digests[kind]) >= count for kind, count in totals.items())
