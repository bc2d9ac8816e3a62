"""ZeroMQ transport: frames between hosts over TCP, encrypted and authenticated with CURVE.

A process has one ROUTER socket and one DEALER socket per endpoint that it sends to; the routing id is the sender's
address. All processes share one CURVE key pair, derived from the deployment key; connections with another key are
rejected (ZAP). Like the Unix transport it never blocks: while an endpoint is unconnected or slow, `send` refuses the
frame and the link resends it later. ZeroMQ heartbeats detect dead connections and reconnect. Frames are opaque here.
"""

from __future__ import annotations

import logging
import select
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest

import zmq
from zmq.utils import z85

from mstar.errors import MstarError
from mstar.wire.frame import MAX_FRAME_BYTES
from mstar.wire.transport.address_book import AddressBook

MAX_QUEUED_FRAMES = 64
"""High-water mark: queued frames per endpoint before `send` refuses. About twice as many are in socket buffers."""
READ_BUDGET_BYTES = 1024 * 1024
"""Maximum bytes read per turn, so that ticks are not delayed."""
ENCRYPTION_OVERHEAD_BYTES = 1024  # upper bound for the CURVE framing
HEARTBEAT_INTERVAL_MS = 300
"""Milliseconds between two heartbeats of a connection."""
HEARTBEAT_TIMEOUT_MS = 1500
"""Milliseconds without a heartbeat before a connection is closed and reopened."""
CONNECT_TIMEOUT_MS = 500
"""Timeout of one connection attempt."""
RECONNECT_INTERVAL_MS = 100
"""Milliseconds between two connection attempts."""
HANDSHAKE_TIMEOUT_MS = 1000
"""Timeout of the CURVE handshake: a busy peer answers late."""

_HANDSHAKE_FAILURES = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # ZeroMQ authentication protocol (RFC 27)

log = logging.getLogger("mstar.wire")


class ZmqTransport:
    """Listening and outbound ZeroMQ sockets of one process, polled by one epoll."""

    def __init__(self, epoll: select.epoll, address_book: AddressBook, key: bytes, counters: Counter[str]) -> None:
        self.has_more = False
        """Whether frames are readable that the last `receive` left for the next turn."""
        self._counters = counters
        self._secret, self._public = _derive_key_pair(key)
        self._context = zmq.Context()
        self._outbound: dict[str, zmq.Socket[bytes]] = {}
        self._zap_socket = self._context.socket(zmq.REP)
        self._zap_socket.bind(_ZAP_ENDPOINT)
        self._listener = self._bind_listener(address_book.ip)
        self._monitor = self._listener.get_monitor_socket(_HANDSHAKE_FAILURES)
        self._zap_fd, self._listener_fd, self._monitor_fd = (
            each.fileno() for each in (self._zap_socket, self._listener, self._monitor)
        )
        for each in (self._zap_socket, self._listener, self._monitor):
            epoll.register(each.fileno(), select.EPOLLIN)
            _is_readable(each)  # arms the edge-triggered descriptor
        address_book.port = int(self._listener.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self._own_address = address_book.own_address.encode()

    def send(self, endpoint: str, frame: bytes) -> bool:
        """Send a frame. Returns False if the endpoint is unconnected or its queue full."""
        try:
            self.connect(endpoint).send(frame, zmq.NOBLOCK)
        except zmq.Again:  # not connected, or at the high-water mark
            return False
        return True

    def connect(self, endpoint: str) -> zmq.Socket[bytes]:
        """The socket for an endpoint; a new one connects in the background."""
        if (known := self._outbound.get(endpoint)) is not None:
            return known
        outbound = self._outbound[endpoint] = self._create_socket(zmq.DEALER)
        outbound.setsockopt(zmq.ROUTING_ID, self._own_address)
        outbound.setsockopt(zmq.CURVE_SERVERKEY, self._public)
        outbound.setsockopt(zmq.IMMEDIATE, 1)  # refuse frames while unconnected instead of queuing them
        outbound.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
        outbound.setsockopt(zmq.RECONNECT_IVL, RECONNECT_INTERVAL_MS)
        with suppress(zmq.ZMQError):  # invalid endpoint: stays unconnected
            outbound.connect(f"tcp://{endpoint}")
        return outbound

    def receive(self, fds: Collection[int]) -> list[tuple[str, bytes]]:
        """Read frames, with the address of their sender, if one of the descriptors is ready.

        A ZeroMQ descriptor is edge-triggered: it only signals a change, so each socket is read until it is empty.
        """
        if self._zap_fd in fds:
            while _is_readable(self._zap_socket):
                self._authenticate(self._zap_socket.recv_multipart())
        if self._monitor_fd in fds:
            while _is_readable(self._monitor):
                self._monitor.recv_multipart()
                self._on_refused()
        return self._read() if self.has_more or self._listener_fd in fds else []

    def disconnect(self, endpoint: str) -> None:
        """Close the connection to an endpoint and drop its queue."""
        if (outbound := self._outbound.pop(endpoint, None)) is not None:
            outbound.close(linger=0)

    def close(self) -> None:
        """Close all sockets and the I/O thread of ZeroMQ."""
        self._context.destroy(linger=0)

    def _read(self) -> list[tuple[str, bytes]]:
        frames: list[tuple[str, bytes]] = []
        budget = READ_BUDGET_BYTES
        while (has_more := _is_readable(self._listener)) and budget > 0:
            address, *_, frame = self._listener.recv_multipart()
            frames.append((address.decode(errors="replace"), frame))
            budget -= len(frame)
        self.has_more = has_more
        return frames

    def _on_refused(self) -> None:
        if not self._counters["refused_key"]:  # log once: it will retry
            log.warning("rejected a connection without the key of this deployment at %s", self._own_address.decode())
        self._counters["refused_key"] += 1

    def _authenticate(self, zap_request: list[bytes]) -> None:
        """Answer a ZAP request: accept only the shared public key of the deployment (ZeroMQ RFC 27)."""
        version, request_id, _, _, _, mechanism, *credentials = zap_request
        is_authentic = mechanism == b"CURVE" and compare_digest(z85.encode(credentials[0]), self._public)
        code, text = (b"200", b"OK") if is_authentic else (b"400", b"unknown key")
        self._zap_socket.send_multipart([version, request_id, code, text, b"", b""])

    def _bind_listener(self, ip: str) -> zmq.Socket[bytes]:
        listener = self._create_socket(zmq.ROUTER)
        listener.setsockopt(zmq.CURVE_SERVER, 1)
        listener.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a reconnect can precede the close of the old connection
        listener.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + ENCRYPTION_OVERHEAD_BYTES)
        try:
            listener.bind(f"tcp://{ip}:*")
        except zmq.ZMQError as error:
            self.close()
            fix = "configure an IP address of this host"
            raise MstarError(f"cannot listen at {ip!r} for other hosts: {error}\n  fix: {fix}") from None
        return listener

    def _create_socket(self, kind: int) -> zmq.Socket[bytes]:
        created = self._context.socket(kind)
        created.setsockopt(zmq.CURVE_PUBLICKEY, self._public)
        created.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
        created.setsockopt(zmq.SNDHWM, MAX_QUEUED_FRAMES)
        created.setsockopt(zmq.RCVHWM, MAX_QUEUED_FRAMES)
        created.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_INTERVAL_MS)
        created.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        created.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_TIMEOUT_MS)
        created.setsockopt(zmq.LINGER, 0)
        return created


def _is_readable(source: zmq.Socket[bytes]) -> bool:
    return bool(int(source.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def _derive_key_pair(key: bytes) -> tuple[bytes, bytes]:
    """Secret and public key shared by all processes of a deployment. Neither is sent in the clear."""
    secret = z85.encode(blake2b(key=key, digest_size=32, person=b"mstar ports").digest())
    return secret, zmq.curve_public(secret)
