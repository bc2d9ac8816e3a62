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

from mstar.errors import MstarError, WouldBlock
from mstar.wire.frame import (
    BadFrame,
    Frame,
    FrameSigner,
    MessageCodec,
    ValueCodec,
    decode_peers,
    encode_peers,
    pack_payloads,
)
from mstar.wire.link import Link, OutgoingFrame
from mstar.wire.messages import AnyMessage, Message, Peer
from mstar.wire.transport.decode_thread import DecodeThread
from mstar.wire.transport.transport import Transport

LARGE_FRAME_BYTES = 1024 * 1024
MIN_BYTES_PER_S = 16 * 1024 * 1024
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


IncomingMessage = tuple[Actor, Peer, Message]
"""Who is to receive it, who sent it, and what was said."""


class _Channel:
    __slots__ = ("actor", "decode_thread", "large_frames", "link", "outgoing", "peers", "remote")

    def __init__(self, actor: Actor, remote: Peer) -> None:
        self.actor = actor
        self.remote = remote
        self.peers = encode_peers(actor.peer, remote)
        self.link = Link()
        self.outgoing: list[bytes] = []
        self.decode_thread: DecodeThread | None = None
        self.large_frames: dict[int, float] = {}  # until when large frames may be on their way, by number


class Channels:
    """The links of a node, and the ways that their frames take. `rouse` may be called by any thread."""

    def __init__(
        self,
        transport: Transport,
        signer: FrameSigner,
        codec: ValueCodec,
        counters: Counter[str],
        wake_up: Callable[[], None],
    ) -> None:
        self.due = inf
        """When a link has something to send by itself, at the earliest."""
        self._transport = transport
        self._signer = signer
        self._codec = codec
        self._message_codec = MessageCodec(codec)
        self._counters = counters
        self._actors: dict[Peer, Actor] = {}
        self._oldest_alive: dict[str, int] = {}  # by name: the oldest life that is not over
        self._channels: dict[tuple[Peer, Peer], _Channel] = {}  # by who is here, and who is there
        self._channels_by_peers: dict[bytes, _Channel] = {}  # the same, by the ends that come in
        self._unflushed: list[_Channel] = []  # those with something to say
        self._wake_up = wake_up
        self._decoded: deque[tuple[_Channel, list[AnyMessage] | None]] = deque()  # filled by threads

    @property
    def has_more(self) -> bool:
        """Whether something has come that the last `hear` did not get to."""
        return self._transport.has_more

    def listen(self, actor: Actor) -> None:
        """Let others reach an actor that lives here."""
        self._transport.listen(actor.peer)
        self._actors[actor.peer] = actor
        self._drop_dead_peers(actor.peer.name, actor.peer.incarnation)

    def send(self, sender: Peer, to: Peer, message: Message) -> None:
        """Put a message into the next frame."""
        line = self._channels.get((sender, to)) or self._open_channel(self._actors[sender], to)
        if line is None:
            self._counters["dropped"] += 1
            return
        if not line.outgoing:
            self._unflushed.append(line)
        line.outgoing.append(self._message_codec.encode(message, to))

    def receive(self, now: float, fds: list[int]) -> list[IncomingMessage]:
        """The messages whose turn it is. With these files something can be done."""
        arrivals = self._take_decoded()
        for address, data in self._transport.receive(fds):
            self._counters["received"] += 1
            try:
                frame = self._signer.verify(data)
                line = self._channels_by_peers.get(frame.peers) or self._accept_channel(frame.peers)
            except MstarError as error:  # a bad frame, or a name that cannot be an address
                self._counters["refused_mac"] += 1
                log.warning("refused a frame: %s", error)
            else:
                if line:
                    if address:
                        self._transport.on_peer_address(line.remote, address)
                    arrivals += self._on_frame(now, line, frame)
        return arrivals

    def flush(self, now: float) -> None:
        """Send what was said, and what links have to send by themselves."""
        spoken, self._unflushed = self._unflushed, []
        for line in spoken:
            if not line.outgoing:  # it was buried after it was spoken to
                continue
            said, line.outgoing = line.outgoing, []
            for payload in pack_payloads(said):
                if sent := line.link.send(now, payload):
                    self._send_frame(now, line, sent)
            self.due = min(self.due, line.link.due)
        if now >= self.due:
            for line in self._channels.values():
                before = line.link.resent
                for sent in line.link.tick(now):
                    self._send_frame(now, line, sent)
                self._counters["resent"] += line.link.resent - before
            self.due = min((line.link.due for line in self._channels.values()), default=inf)

    def set_address(self, peer: Peer, address: str) -> None:
        """This life is to be found there."""
        if peer.incarnation >= self._oldest_alive.get(peer.name, 0):
            self._transport.set_address(peer, address)

    def forget(self, peer: Peer) -> None:
        """This life is over, and those before it."""
        self._drop_dead_peers(peer.name, peer.incarnation + 1)

    def stats(self) -> dict[str, int]:
        """What is held here, counted."""
        lines = self._channels.values()
        return {
            "links": len(lines),
            "unacked": sum(line.link.unacked for line in lines),
            "decoding": sum(line.decode_thread.pending for line in lines if line.decode_thread),
        }

    def close(self) -> None:
        """Close every socket and the codec."""
        self._transport.close()
        fetches = [line.decode_thread for line in self._channels.values() if line.decode_thread]
        for fetch in fetches:
            fetch.close()
        for fetch in fetches:
            fetch.join()
        self._codec.close()

    def _on_frame(self, now: float, line: _Channel, frame: Frame) -> list[IncomingMessage]:
        arrivals: list[IncomingMessage] = []
        for payload in line.link.receive(now, frame.number, frame.ack, frame.payload):
            if line.decode_thread:
                line.decode_thread.put(payload)
                continue
            try:
                messages = self._message_codec.decode(payload, line.remote)
                arrivals += [(line.actor, line.remote, message) for message in messages]
            except WouldBlock:
                self._start_decode_thread(line).put(payload)
            except BadFrame:
                self._counters["undecoded"] += 1
                log.exception("what %s said is lost", line.remote)
        self.due = min(self.due, line.link.due)
        return arrivals

    def _start_decode_thread(self, line: _Channel) -> DecodeThread:
        def give(messages: list[AnyMessage] | None) -> None:
            self._decoded.append((line, messages))
            self._wake_up()

        line.decode_thread = DecodeThread(self._codec, line.remote, give)
        return line.decode_thread

    def _take_decoded(self) -> list[IncomingMessage]:
        arrivals: list[IncomingMessage] = []
        for _ in range(len(self._decoded)):
            line, messages = self._decoded.popleft()
            if line.decode_thread is None:  # it was buried meanwhile
                continue
            line.decode_thread.pending -= 1
            if messages is None:
                self._counters["undecoded"] += 1
            else:
                arrivals += [(line.actor, line.remote, message) for message in messages]
        return arrivals

    def _send_frame(self, now: float, line: _Channel, sent: OutgoingFrame) -> None:
        number, ack, payload = sent
        size = 0 if payload is None else len(payload)
        is_large = size > LARGE_FRAME_BYTES
        if is_large and line.large_frames.get(number, 0.0) > now:
            return
        is_refused = is_large and self._transport.is_full(line.remote)  # sealing it would be in vain
        frame = Frame(line.peers, number, ack, payload or b"")
        if is_refused or not self._transport.send(line.remote, self._signer.sign(frame)):
            self._counters["full"] += 1
            line.link.on_refused(now)
            return
        self._counters["sent"] += 1
        if is_large:
            line.large_frames = {one: until for one, until in line.large_frames.items() if until > now}
            line.large_frames[number] = now + size / MIN_BYTES_PER_S

    def _accept_channel(self, ends: bytes) -> _Channel | None:
        """The line for a frame whose ends are new, unless it is not for us or from a life that is over."""
        sender, receiver = decode_peers(ends)
        if receiver not in self._actors:
            self._counters["refused_other"] += 1
            return None
        line = self._open_channel(self._actors[receiver], sender)
        if line is None:
            self._counters["refused_old"] += 1
        return line

    def _open_channel(self, actor: Actor, there: Peer) -> _Channel | None:
        """A new line, unless that life is over."""
        oldest = self._oldest_alive.get(there.name, -1)
        if there.incarnation < oldest:
            return None
        self._drop_dead_peers(there.name, there.incarnation)
        self._transport.check_name(there)  # a name that cannot be an address is refused
        line = _Channel(actor, there)
        self._channels[actor.peer, there] = self._channels_by_peers[encode_peers(there, actor.peer)] = line
        return line

    def _drop_dead_peers(self, name: str, oldest: int) -> None:
        """Lives of this name before `oldest` are over: keep nothing for them."""
        dead = Peer(name, self._oldest_alive.get(name, oldest))
        self._oldest_alive[name] = max(dead.incarnation, oldest)
        if dead.incarnation < oldest:
            for here, there in [pair for pair in self._channels if pair[1] == dead]:
                line = self._channels.pop((here, there))
                del self._channels_by_peers[encode_peers(there, here)]
                line.outgoing.clear()
                if line.decode_thread:
                    line.decode_thread.close()
                    line.decode_thread = None
            self._transport.disconnect(dead)
            self._codec.forget(dead)
        self._transport.forget(Peer(name, oldest - 1))  # also those that were only heard of
