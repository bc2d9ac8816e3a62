"""Reliable channels between actors of this process and remote actors, of this host and of others.

A channel is a `Link` (sequence numbers, acks, resends) plus the messages queued since the last frame. A frame with
heartbeats only is unreliable: each of them would cost an acknowledgement, and with it a wake-up of both processes, and
the next one replaces it. Credits, and confirmations that can wait, wait for other messages to the same peer, or
`LAZY_DELAY_S`: those of many streams become one frame. Frames with a wrong MAC, for an unknown actor, or from a dead
incarnation are rejected. Messages are delivered by the actor loop. Once a channel has received a value whose bytes are
on another host, a `DecodeThread` decodes its payloads.
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
from mstar.wire.incarnations import LiveIncarnations
from mstar.wire.link import Link, OutgoingFrame
from mstar.wire.messages import LIVENESS_MESSAGES, AnyMessage, AttemptReleased, Credit, Message, Peer
from mstar.wire.transport.decode_thread import DecodeThread
from mstar.wire.transport.transport import Transport

LARGE_FRAME_BYTES = 1024 * 1024
"""Size above which a frame is resent only after its estimated transfer time."""
MIN_BYTES_PER_S = 16 * 1024 * 1024
"""Lowest assumed bandwidth. A large frame is not resent before it would have arrived at this speed."""

LAZY_DELAY_S = 0.02
"""Maximum seconds that a message waits for others: a credit, or a confirmation that can wait. A worker computes ahead
of the client by far more, and a conductor wants confirmations at once while few requests can start."""

log = logging.getLogger("mstar.wire")


class Actor(Protocol):
    """A state machine hosted by an actor loop. Both methods run on the loop and must not block.

    An attribute `tick_interval` of type `actor_loop.TickInterval` sets how often it ticks.
    """

    peer: Peer

    def receive(self, now: float, sender: Peer, message: Message) -> None:
        """Handle a message."""
        ...

    def tick(self, now: float) -> None:
        """Handle the periodic tick."""
        ...


IncomingMessage = tuple[Actor, Peer, Message]
"""Receiving actor, sender and message."""


class _Channel:
    __slots__ = (
        "actor",
        "decode_thread",
        "flush_at",
        "is_reliable",
        "large_frames",
        "link",
        "outgoing",
        "peers",
        "remote",
    )

    def __init__(self, actor: Actor, remote: Peer) -> None:
        self.actor = actor
        self.remote = remote
        self.peers = encode_peers(actor.peer, remote)
        self.link = Link()
        self.outgoing: list[bytes] = []
        self.is_reliable = False  # whether one of the queued messages must arrive
        self.flush_at = 0.0  # when to send the queued messages
        self.decode_thread: DecodeThread | None = None
        self.large_frames: dict[int, float] = {}  # latest arrival time of large frames, by number


class Channels:
    """All channels of a process. `wake_up` is called from any thread."""

    def __init__(
        self,
        transport: Transport,
        signer: FrameSigner,
        codec: ValueCodec,
        counters: Counter[str],
        wake_up: Callable[[], None],
    ) -> None:
        self._due = inf  # a lower bound of the earliest time at which a link has to resend or acknowledge
        self._transport = transport
        self._signer = signer
        self._codec = codec
        self._message_codec = MessageCodec(codec)
        self._counters = counters
        self._actors: dict[Peer, Actor] = {}
        self._incarnations = LiveIncarnations()
        self._channels: dict[tuple[Peer, Peer], _Channel] = {}  # by local and remote peer
        self._channels_by_peers: dict[bytes, _Channel] = {}  # by the encoded peers of incoming frames
        self._unflushed: list[_Channel] = []  # channels with queued messages
        self._timed: dict[_Channel, None] = {}  # channels whose link has something due at some time: few of many
        self._blocked: list[_Channel] = []  # channels whose transport is full
        self._wake_up = wake_up
        self._decoded: deque[tuple[_Channel, list[AnyMessage] | None]] = deque()  # filled by decode threads

    @property
    def has_more(self) -> bool:
        """Whether frames are readable that the last `receive` left for the next turn."""
        return self._transport.has_more

    def listen(self, actor: Actor) -> None:
        """Accept connections for an actor of this process."""
        self._transport.listen(actor.peer)
        self._actors[actor.peer] = actor
        self._incarnations.add(actor.peer)
        self._drop_dead_peers(actor.peer.name)

    def send(self, sender: Peer, to: Peer, message: Message) -> None:
        """Queue a message for the next frame to a peer."""
        channel = self._channels.get((sender, to)) or self._open_channel(self._actors[sender], to)
        if channel is None:
            self._counters["dropped"] += 1
            return
        if not channel.outgoing:
            self._unflushed.append(channel)
            channel.flush_at = inf
        kind = type(message)
        if kind not in LIVENESS_MESSAGES:
            channel.is_reliable = True
        if kind is not Credit and not (type(message) is AttemptReleased and message.can_wait):
            channel.flush_at = 0.0
        channel.outgoing.append(self._message_codec.encode(message, to))

    def receive(self, now: float, fds: list[int]) -> list[IncomingMessage]:
        """Read frames from the ready descriptors. Returns the messages that are deliverable now."""
        arrivals = self._take_decoded() if self._decoded else []
        frames = self._transport.receive(fds)
        if frames:
            self._counters["received"] += len(frames)
        for address, data in frames:
            try:
                frame = self._signer.verify(data)
                channel = self._channels_by_peers.get(frame.peers) or self._accept_channel(frame.peers)
            except MstarError as error:  # a bad frame, or an invalid peer name
                self._counters["refused_mac"] += 1
                log.warning("rejected a frame: %s", error)
            else:
                if channel:
                    if address:
                        self._transport.on_peer_address(channel.remote, address)
                    arrivals += self._on_frame(now, channel, frame)
        return arrivals

    def flush(self, now: float) -> None:
        """Send queued messages, and resends and acknowledgements that are due."""
        channels, self._unflushed = self._unflushed, []
        for channel in channels:
            if not channel.outgoing:  # its peer died meanwhile
                continue
            if now < channel.flush_at:  # only messages that can wait
                channel.flush_at = min(channel.flush_at, now + LAZY_DELAY_S)
                self._unflushed.append(channel)
                self._due = min(self._due, channel.flush_at)
                continue
            messages, channel.outgoing = channel.outgoing, []
            is_reliable, channel.is_reliable = channel.is_reliable, False
            link = channel.link
            for payload in pack_payloads(messages):
                if outgoing := link.send(now, payload) if is_reliable else link.send_unreliable(payload):
                    self._send_frame(now, channel, outgoing)
            if (due := link.due) < inf:
                self._timed[channel] = None
                self._due = min(self._due, due)
        if now >= self._due or self._blocked:
            self._tick_links(now)

    def _tick_links(self, now: float) -> None:
        """Send resends, queued payloads and acknowledgements, to each peer until the transport refuses one."""
        for channel in [channel for channel in self._blocked if not self._transport.is_full(channel.remote)]:
            self._blocked.remove(channel)
            channel.link.on_writable(now)
        for channel in list(self._timed):
            link = channel.link
            if now < link.due:
                continue
            resent = link.resent
            frames = link.tick(now)
            self._counters["resent"] += link.resent - resent
            for outgoing in frames:
                if not self._send_frame(now, channel, outgoing, can_be_full=True):
                    break
        self._due = self._earliest_due()

    def due(self, until: float) -> float:
        """Earliest time at which a link has to resend or acknowledge; exact if it is before `until`.

        A frame that was sent meanwhile can have carried the acknowledgement that was due first.
        """
        if self._due < until:
            self._due = self._earliest_due()
        return self._due

    def _earliest_due(self) -> float:
        due = inf
        for channel in list(self._timed):
            if (link_due := channel.link.due) == inf:
                del self._timed[channel]
            elif link_due < due:
                due = link_due
        for channel in self._unflushed:
            due = min(due, channel.flush_at)
        return due

    def set_address(self, peer: Peer, address: str) -> None:
        """Record the address of a live peer."""
        if self._incarnations.is_live(peer):
            self._transport.set_address(peer, address)

    def forget(self, peer: Peer) -> None:
        """Drop this and earlier incarnations of a peer."""
        self._incarnations.remove(peer)
        self._drop_dead_peers(peer.name)

    def stats(self) -> dict[str, int]:
        """Gauges: open links, unacknowledged payloads, payloads being decoded."""
        channels = self._channels.values()
        return {
            "links": len(channels),
            "unacked": sum(channel.link.unacked for channel in channels),
            "decoding": sum(channel.decode_thread.pending for channel in channels if channel.decode_thread),
        }

    def close(self) -> None:
        """Close all sockets, decode threads and the codec."""
        self._transport.close()
        threads = [channel.decode_thread for channel in self._channels.values() if channel.decode_thread]
        for thread in threads:
            thread.close()
        for thread in threads:
            thread.join()
        self._codec.close()

    def _on_frame(self, now: float, channel: _Channel, frame: Frame) -> list[IncomingMessage]:
        arrivals: list[IncomingMessage] = []
        for payload in channel.link.receive(now, frame.number, frame.ack, frame.payload):
            if channel.decode_thread:
                channel.decode_thread.put(payload)
                continue
            try:
                messages = self._message_codec.decode(payload, channel.remote)
                arrivals += [(channel.actor, channel.remote, message) for message in messages]
            except WouldBlock:
                self._start_decode_thread(channel).put(payload)
            except BadFrame:
                self._counters["undecoded"] += 1
                log.exception("dropped an invalid payload from %s", channel.remote)
        if (due := channel.link.due) < inf:
            self._timed[channel] = None
            self._due = min(self._due, due)
        return arrivals

    def _start_decode_thread(self, channel: _Channel) -> DecodeThread:
        def on_decoded(messages: list[AnyMessage] | None) -> None:
            self._decoded.append((channel, messages))
            self._wake_up()

        channel.decode_thread = DecodeThread(self._codec, channel.remote, on_decoded)
        return channel.decode_thread

    def _take_decoded(self) -> list[IncomingMessage]:
        arrivals: list[IncomingMessage] = []
        for _ in range(len(self._decoded)):
            channel, messages = self._decoded.popleft()
            if channel.decode_thread is None:  # its peer died meanwhile
                continue
            channel.decode_thread.pending -= 1
            if messages is None:
                self._counters["undecoded"] += 1
            else:
                arrivals += [(channel.actor, channel.remote, message) for message in messages]
        return arrivals

    def _send_frame(self, now: float, channel: _Channel, outgoing: OutgoingFrame, *, can_be_full: bool = False) -> bool:
        """Send a frame of a link. Returns False if the transport refused it, which it probably does if it was full."""
        number, ack, payload = outgoing
        size = 0 if payload is None else len(payload)
        is_large = size > LARGE_FRAME_BYTES
        if is_large and channel.large_frames.get(number, 0.0) > now:
            return True
        is_refused = (is_large or can_be_full) and self._transport.is_full(channel.remote)  # do not sign it in vain
        frame = Frame(channel.peers, number, ack, payload or b"")
        if is_refused or not self._transport.send(channel.remote, self._signer.sign(frame)):
            self._counters["full"] += 1
            channel.link.on_refused(now, number)
            if channel not in self._blocked and self._transport.is_full(channel.remote):
                self._blocked.append(channel)
            return False
        self._counters["sent"] += 1
        if is_large:
            channel.large_frames = {other: until for other, until in channel.large_frames.items() if until > now}
            channel.large_frames[number] = now + size / MIN_BYTES_PER_S
        return True

    def _accept_channel(self, peers: bytes) -> _Channel | None:
        """Channel for a frame with new peers; None if it is not for us or its sender is dead."""
        sender, receiver = decode_peers(peers)
        if receiver not in self._actors:
            self._counters["refused_other"] += 1
            return None
        channel = self._open_channel(self._actors[receiver], sender)
        if channel is None:
            self._counters["refused_old"] += 1
        return channel

    def _open_channel(self, actor: Actor, remote: Peer) -> _Channel | None:
        """A new channel; None if the peer is dead."""
        if not self._incarnations.is_live(remote):
            return None
        self._incarnations.add(remote)
        self._drop_dead_peers(remote.name)
        self._transport.check_name(remote)  # raises MstarError
        channel = _Channel(actor, remote)
        self._channels[actor.peer, remote] = self._channels_by_peers[encode_peers(remote, actor.peer)] = channel
        return channel

    def _drop_dead_peers(self, name: str) -> None:
        """Drop the dead incarnations of this name."""
        pairs = [pair for pair in self._channels if pair[1].name == name and not self._incarnations.is_live(pair[1])]
        for local, remote in pairs:
            channel = self._channels.pop((local, remote))
            del self._channels_by_peers[encode_peers(remote, local)]
            channel.outgoing.clear()
            channel.is_reliable = False
            self._timed.pop(channel, None)
            if channel in self._blocked:
                self._blocked.remove(channel)
            if channel.decode_thread:
                channel.decode_thread.close()
                channel.decode_thread = None
        for dead in dict.fromkeys(remote for _, remote in pairs):
            self._transport.disconnect(dead)
            self._codec.forget(dead)
        self._transport.forget(Peer(name, self._incarnations.oldest(name) - 1))  # also peers known by address only
