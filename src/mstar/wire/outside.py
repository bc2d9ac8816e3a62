"""The outside of a node: the other processes, of this host and of others.

Between an actor here and one elsewhere there is a line: a link, and what was said since the last frame. Nobody is
heard, or spoken to, whose life is over. What arrives is handed to the node, which gives it to actors. Once a line has
brought a value whose bytes are on another host, a thread of its own decodes what it brings: see fetch.py.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from math import inf
from typing import Protocol

from mstar.errors import MstarError, NotHere
from mstar.wire.fetch import Fetch
from mstar.wire.frame import (
    BadFrame,
    Codec,
    Frame,
    Seal,
    Translator,
    joined,
    read_ends,
    write_ends,
)
from mstar.wire.link import Link, Sent
from mstar.wire.messages import AnyMessage, Message, Peer
from mstar.wire.ways import Ways

LARGE_BYTES = 1024 * 1024
SLOW_BYTES_PER_S = 16 * 1024 * 1024
"""A large frame is not sent again before it would have arrived at this speed: that would only hold it up."""

log = logging.getLogger("mstar.wire")


class Actor(Protocol):
    """One who lives on a node."""

    peer: Peer

    def receive(self, now: float, sender: Peer, message: Message) -> None:
        """Take a message."""
        ...

    def tick(self, now: float) -> None:
        """Time has passed."""
        ...


Arrival = tuple[Actor, Peer, Message]
"""Who is to receive it, who sent it, and what was said."""


class _Line:
    __slots__ = ("actor", "ends", "fetch", "large", "link", "said", "there")

    def __init__(self, actor: Actor, there: Peer) -> None:
        self.actor = actor
        self.there = there
        self.ends = write_ends(actor.peer, there)
        self.link = Link()
        self.said: list[bytes] = []
        self.fetch: Fetch | None = None
        self.large: dict[int, float] = {}  # until when large frames may be on their way, by number


class Outside:
    """The links of a node, and the ways that their frames take. `rouse` may be called by any thread."""

    def __init__(self, ways: Ways, seal: Seal, codec: Codec, counters: Counter[str], rouse: Callable[[], None]) -> None:
        self.due = inf
        """When a link has something to send by itself, at the earliest."""
        self._ways = ways
        self._seal = seal
        self._codec = codec
        self._translator = Translator(codec)
        self._counters = counters
        self._actors: dict[Peer, Actor] = {}
        self._alive: dict[str, int] = {}  # by name: the oldest life that is not over
        self._lines: dict[tuple[Peer, Peer], _Line] = {}  # by who is here, and who is there
        self._heard: dict[bytes, _Line] = {}  # the same, by the ends that come in
        self._spoken: list[_Line] = []  # those with something to say
        self._rouse = rouse
        self._fetched: deque[tuple[_Line, list[AnyMessage] | None]] = deque()  # filled by threads

    @property
    def has_more(self) -> bool:
        """Whether something has come that the last `hear` did not get to."""
        return self._ways.has_more

    def listen(self, actor: Actor) -> None:
        """Let others reach an actor that lives here."""
        self._ways.listen(actor.peer)
        self._actors[actor.peer] = actor
        self._bury(actor.peer.name, actor.peer.incarnation)

    def say(self, sender: Peer, to: Peer, message: Message) -> None:
        """Put a message into the next frame."""
        line = self._lines.get((sender, to)) or self._meet(self._actors[sender], to)
        if line is None:
            self._counters["dropped"] += 1
            return
        if not line.said:
            self._spoken.append(line)
        line.said.append(self._translator.encode(message, to))

    def hear(self, now: float, files: list[int]) -> list[Arrival]:
        """The messages whose turn it is. With these files something can be done."""
        arrivals = self._take_fetched()
        for address, data in self._ways.ready(files):
            self._counters["received"] += 1
            try:
                frame = self._seal.open(data)
                line = self._heard.get(frame.ends) or self._answer(frame.ends)
            except MstarError as error:  # a bad frame, or a name that cannot be an address
                self._counters["refused_mac"] += 1
                log.warning("refused a frame: %s", error)
            else:
                if line:
                    if address:
                        self._ways.hear_from(line.there, address)
                    arrivals += self._take(now, line, frame)
        return arrivals

    def flush(self, now: float) -> None:
        """Send what was said, and what links have to send by themselves."""
        spoken, self._spoken = self._spoken, []
        for line in spoken:
            if not line.said:  # it was buried after it was spoken to
                continue
            said, line.said = line.said, []
            for payload in joined(said):
                if sent := line.link.send(now, payload):
                    self._send(now, line, sent)
            self.due = min(self.due, line.link.due)
        if now >= self.due:
            for line in self._lines.values():
                before = line.link.resent
                for sent in line.link.tick(now):
                    self._send(now, line, sent)
                self._counters["resent"] += line.link.resent - before
            self.due = min((line.link.due for line in self._lines.values()), default=inf)

    def meet(self, peer: Peer, address: str) -> None:
        """This life is to be found there."""
        if peer.incarnation >= self._alive.get(peer.name, 0):
            self._ways.meet(peer, address)

    def forget(self, peer: Peer) -> None:
        """This life is over, and those before it."""
        self._bury(peer.name, peer.incarnation + 1)

    def stock(self) -> dict[str, int]:
        """What is held here, counted."""
        lines = self._lines.values()
        return {
            "links": len(lines),
            "unacked": sum(line.link.unacked for line in lines),
            "fetching": sum(line.fetch.waiting for line in lines if line.fetch),
        }

    def close(self) -> None:
        """Close every socket and the codec."""
        self._ways.close()
        fetches = [line.fetch for line in self._lines.values() if line.fetch]
        for fetch in fetches:
            fetch.end()
        for fetch in fetches:
            fetch.join()
        self._codec.close()

    def _take(self, now: float, line: _Line, frame: Frame) -> list[Arrival]:
        arrivals: list[Arrival] = []
        for payload in line.link.receive(now, frame.number, frame.ack, frame.payload):
            if line.fetch:
                line.fetch.put(payload)
                continue
            try:
                messages = self._translator.decode(payload, line.there)
                arrivals += [(line.actor, line.there, message) for message in messages]
            except NotHere:
                self._begin_fetch(line).put(payload)
            except BadFrame:
                self._counters["undecoded"] += 1
                log.exception("what %s said is lost", line.there)
        self.due = min(self.due, line.link.due)
        return arrivals

    def _begin_fetch(self, line: _Line) -> Fetch:
        def give(messages: list[AnyMessage] | None) -> None:
            self._fetched.append((line, messages))
            self._rouse()

        line.fetch = Fetch(self._codec, line.there, give)
        return line.fetch

    def _take_fetched(self) -> list[Arrival]:
        arrivals: list[Arrival] = []
        for _ in range(len(self._fetched)):
            line, messages = self._fetched.popleft()
            if line.fetch is None:  # it was buried meanwhile
                continue
            line.fetch.waiting -= 1
            if messages is None:
                self._counters["undecoded"] += 1
            else:
                arrivals += [(line.actor, line.there, message) for message in messages]
        return arrivals

    def _send(self, now: float, line: _Line, sent: Sent) -> None:
        number, ack, payload = sent
        size = 0 if payload is None else len(payload)
        is_large = size > LARGE_BYTES
        if is_large and line.large.get(number, 0.0) > now:
            return
        is_refused = is_large and self._ways.is_full(line.there)  # sealing it would be in vain
        frame = Frame(line.ends, number, ack, payload or b"")
        if is_refused or not self._ways.send(line.there, self._seal.close(frame)):
            self._counters["full"] += 1
            line.link.refused(now)
            return
        self._counters["sent"] += 1
        if is_large:
            line.large = {one: until for one, until in line.large.items() if until > now}
            line.large[number] = now + size / SLOW_BYTES_PER_S

    def _answer(self, ends: bytes) -> _Line | None:
        """The line for a frame whose ends are new, unless it is not for us or from a life that is over."""
        sender, receiver = read_ends(ends)
        if receiver not in self._actors:
            self._counters["refused_other"] += 1
            return None
        line = self._meet(self._actors[receiver], sender)
        if line is None:
            self._counters["refused_old"] += 1
        return line

    def _meet(self, actor: Actor, there: Peer) -> _Line | None:
        """A new line, unless that life is over."""
        oldest = self._alive.get(there.name, -1)
        if there.incarnation < oldest:
            return None
        self._bury(there.name, there.incarnation)
        self._ways.check(there)  # a name that cannot be an address is refused
        line = _Line(actor, there)
        self._lines[actor.peer, there] = self._heard[write_ends(there, actor.peer)] = line
        return line

    def _bury(self, name: str, oldest: int) -> None:
        """Lives of this name before `oldest` are over: keep nothing for them."""
        dead = Peer(name, self._alive.get(name, oldest))
        self._alive[name] = max(dead.incarnation, oldest)
        if dead.incarnation < oldest:
            for here, there in [pair for pair in self._lines if pair[1] == dead]:
                line = self._lines.pop((here, there))
                del self._heard[write_ends(there, here)]
                line.said.clear()
                if line.fetch:
                    line.fetch.end()
                    line.fetch = None
            self._ways.leave(dead)
            self._codec.forget(dead)
        self._ways.forget(Peer(name, oldest - 1))  # also those that were only heard of
