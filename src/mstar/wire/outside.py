"""The outside of a node: the other processes, reached over ZeroMQ.

Each actor has an inbox at `ipc://directory/name.incarnation`. Between an actor here and one elsewhere there is a line:
a link, and what was said since the last frame. Nobody is heard, or spoken to, whose life is over. What arrives is
handed to the node, which gives it to actors.
"""

from __future__ import annotations

import logging
from collections import Counter
from math import inf
from pathlib import Path
from typing import Protocol, cast

import zmq

from mstar.errors import MstarError
from mstar.wire.frame import (
    FRAME_BYTES,
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

TURN_FRAMES = 256
"""How many frames are taken from an inbox at once, so that busy peers keep nobody from their ticks."""
HIGH_WATER = 10_000
RECONNECT_MS = 20
PATH_BYTES = 107  # what Linux has room for in the name of a socket

_READABLE, _AT_ONCE = int(zmq.POLLIN), int(zmq.NOBLOCK)  # as plain numbers: an operation on an enum costs 2 us

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
    __slots__ = ("actor", "ends", "exit", "link", "said", "there")

    def __init__(self, actor: Actor, there: Peer, exit: zmq.Socket[bytes]) -> None:
        self.actor = actor
        self.there = there
        self.exit = exit
        self.ends = write_ends(actor.peer, there)
        self.link = Link()
        self.said: list[bytes] = []


class Outside:
    """The links and sockets of a node."""

    def __init__(self, directory: Path, seal: Seal, codec: Codec, counters: Counter[str]) -> None:
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
        self._exits: dict[Peer, zmq.Socket[bytes]] = {}
        self._context = zmq.Context(io_threads=1)

    def listen(self, actor: Actor) -> zmq.Socket[bytes]:
        """The inbox of an actor that lives here."""
        path = self._path(actor.peer)
        inbox = self._context.socket(zmq.PULL)
        inbox.set(zmq.LINGER, 0)
        inbox.set(zmq.RCVHWM, HIGH_WATER)
        inbox.set(zmq.MAXMSGSIZE, FRAME_BYTES)
        inbox.bind(f"ipc://{path}")
        self._actors[actor.peer] = actor
        self._bury(actor.peer.name, actor.peer.incarnation)
        return inbox

    def say(self, sender: Peer, to: Peer, message: Message) -> None:
        """Put a message into the next frame."""
        line = self._lines.get((sender, to)) or self._meet(self._actors[sender], to)
        if line is None:
            self._counters["dropped"] += 1
            return
        if not line.said:
            self._spoken.append(line)
        line.said.append(self._translator.encode(message, to))

    def hear(self, now: float, inbox: zmq.Socket[bytes]) -> list[Arrival]:
        """The messages in an inbox whose turn it is."""
        arrivals: list[Arrival] = []
        for _ in range(TURN_FRAMES):
            self._counters["received"] += 1
            try:
                frame = self._seal.open(inbox.recv(_AT_ONCE))
                line = self._heard.get(frame.ends) or self._answer(frame.ends)
            except MstarError as error:  # a bad frame, or a name that cannot be an address
                self._counters["refused_mac"] += 1
                log.warning("refused a frame: %s", error)
            else:
                if line:
                    arrivals += self._take(now, line, frame)
            if not cast(int, inbox.getsockopt(zmq.EVENTS)) & _READABLE:  # asking is cheaper than failing
                break
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
                    self._send(line, sent)
            self.due = min(self.due, line.link.due)
        if now >= self.due:
            for line in self._lines.values():
                before = line.link.resent
                for sent in line.link.tick(now):
                    self._send(line, sent)
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
        self._context.destroy(linger=0)
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

    def _send(self, line: _Line, sent: Sent) -> None:
        number, ack, payload = sent
        try:
            line.exit.send(self._seal.close(Frame(line.ends, number, ack, payload or b"")), _AT_ONCE)
            self._counters["sent"] += 1
        except zmq.Again:  # the link sends it again
            self._counters["full"] += 1

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
        line = _Line(actor, there, self._exits.get(there) or self._open(there))
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
        if exit := self._exits.pop(dead, None):
            exit.close()
        self._codec.forget(dead)

    def _open(self, there: Peer) -> zmq.Socket[bytes]:
        path = self._path(there)
        exit = self._exits[there] = self._context.socket(zmq.PUSH)
        exit.set(zmq.LINGER, 0)
        exit.set(zmq.SNDHWM, HIGH_WATER)
        exit.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        exit.connect(f"ipc://{path}")
        return exit

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
