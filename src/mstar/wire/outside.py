"""The outside of a node: the other processes of this host.

Each actor listens at `directory/name.incarnation`. Between an actor here and one elsewhere there is a line:
a link, and what was said since the last frame. Nobody is heard, or spoken to, whose life is over. What arrives is
handed to the node, which gives it to actors.
"""

from __future__ import annotations

import logging
from collections import Counter
from math import inf
from pathlib import Path
from typing import Protocol

from mstar.errors import MstarError
from mstar.wire.frame import (
    NAME_BYTES,
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
from mstar.wire.messages import Message, Peer
from mstar.wire.sockets import Sockets

PATH_BYTES = 107  # what Linux has room for in the name of a socket

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
    __slots__ = ("actor", "ends", "link", "path", "said", "there")

    def __init__(self, actor: Actor, there: Peer, path: Path) -> None:
        self.actor = actor
        self.there = there
        self.path = path
        self.ends = write_ends(actor.peer, there)
        self.link = Link()
        self.said: list[bytes] = []


class Outside:
    """The links and sockets of a node."""

    def __init__(self, directory: Path, seal: Seal, codec: Codec, sockets: Sockets, counters: Counter[str]) -> None:
        self.due = inf
        """When a link has something to send by itself, at the earliest."""
        self._directory = directory
        self._seal = seal
        self._codec = codec
        self._translator = Translator(codec)
        self._counters = counters
        self._actors: dict[Peer, Actor] = {}
        self._alive: dict[str, int] = {}  # by name: the oldest life that is not over
        self._lines: dict[tuple[Peer, Peer], _Line] = {}  # by who is here, and who is there
        self._heard: dict[bytes, _Line] = {}  # the same, by the ends that come in
        self._spoken: list[_Line] = []  # those with something to say
        self._sockets = sockets

    def listen(self, actor: Actor) -> None:
        """Let others reach an actor that lives here."""
        self._sockets.listen(self._path(actor.peer))
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

    def hear(self, now: float, file: int) -> list[Arrival]:
        """The messages whose turn it is, of those that have come to one of the sockets."""
        arrivals: list[Arrival] = []
        for data in self._sockets.ready(file):
            self._counters["received"] += 1
            try:
                frame = self._seal.open(data)
                line = self._heard.get(frame.ends) or self._answer(frame.ends)
            except MstarError as error:  # a bad frame, or a name that cannot be an address
                self._counters["refused_mac"] += 1
                log.warning("refused a frame: %s", error)
            else:
                if line:
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

    def forget(self, peer: Peer) -> None:
        """This life is over, and those before it."""
        self._bury(peer.name, peer.incarnation + 1)

    def stock(self) -> dict[str, int]:
        """What is held here, counted."""
        links = [line.link for line in self._lines.values()]
        return {"links": len(links), "unacked": sum(link.unacked for link in links)}

    def close(self) -> None:
        """Close every socket and the codec."""
        self._sockets.close()
        for peer in self._actors:
            self._path(peer).unlink(missing_ok=True)
        self._codec.close()

    def _take(self, now: float, line: _Line, frame: Frame) -> list[Arrival]:
        arrivals: list[Arrival] = []
        for payload in line.link.receive(now, frame.number, frame.ack, frame.payload):
            try:
                messages = self._translator.decode(payload, line.there)
                arrivals += [(line.actor, line.there, message) for message in messages]
            except BadFrame:
                self._counters["undecoded"] += 1
                log.exception("what %s said is lost", line.there)
        self.due = min(self.due, line.link.due)
        return arrivals

    def _send(self, now: float, line: _Line, sent: Sent) -> None:
        number, ack, payload = sent
        if self._sockets.send(line.path, self._seal.close(Frame(line.ends, number, ack, payload or b""))):
            self._counters["sent"] += 1
        else:
            self._counters["full"] += 1
            line.link.refused(now)

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
        line = _Line(actor, there, self._path(there))
        self._lines[actor.peer, there] = self._heard[write_ends(there, actor.peer)] = line
        return line

    def _bury(self, name: str, oldest: int) -> None:
        """Lives of this name before `oldest` are over: keep nothing for them."""
        dead = Peer(name, self._alive.get(name, oldest))
        self._alive[name] = max(dead.incarnation, oldest)
        if dead.incarnation >= oldest:
            return
        for here, there in [pair for pair in self._lines if pair[1] == dead]:
            line = self._lines.pop((here, there))
            del self._heard[write_ends(there, here)]
            line.said.clear()
        self._sockets.leave(self._path(dead))
        self._codec.forget(dead)

    def _path(self, peer: Peer) -> Path:
        if not 0 < len(peer.name.encode()) <= NAME_BYTES or "/" in peer.name:
            fix = f"use 1 to {NAME_BYTES} bytes without a slash"
            raise MstarError(f"a process cannot be called {peer.name!r}\n  fix: {fix}")
        path = self._directory / str(peer)
        size = len(bytes(path))
        if size > PATH_BYTES:
            fix = f"use a shorter directory or name: {PATH_BYTES} bytes are what Linux allows"
            raise MstarError(f"{path} is {size} bytes long, too long for a socket\n  fix: {fix}")
        return path
