"""Ports: frames between processes of different hosts, over TCP and encrypted.

A process has one port where others connect, and one connection to each endpoint it sends to; a frame carries its
sender's address beside it. Who does not have the deployment's key is refused at the door. As with sockets.py nobody is
waited for: while an endpoint is not connected, or behind, a frame is refused, and the link above sends it again. A
connection that went silent is given up and made anew, by ZeroMQ. What frames mean is not known here.
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
"""A frame is refused when so many wait for their reader; about twice as many more are with it, or on their way."""
READ_BUDGET_BYTES = 1024 * 1024
"""After so much the node has its turn, so that what comes in keeps nobody from their ticks."""
ENCRYPTION_OVERHEAD_BYTES = 1024  # what encryption adds to a frame, and more
HEARTBEAT_INTERVAL_MS = 300
HEARTBEAT_TIMEOUT_MS = 1500
"""How often a connection shows that it is there, and when one that does not is given up."""
CONNECT_TIMEOUT_MS = 500
RECONNECT_INTERVAL_MS = 100
"""How long one try to connect may take, and how soon the next follows."""
HANDSHAKE_TIMEOUT_MS = 1000
"""How long both sides may take to show each other their keys; a busy node answers late."""

_HANDSHAKE_FAILURES = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # where ZeroMQ asks whether a key is welcome

log = logging.getLogger("mstar.wire")


class ZmqTransport:
    """The door of one process to other hosts, and its ways to their doors, watched by one epoll."""

    def __init__(self, epoll: select.epoll, address_book: AddressBook, key: bytes, counters: Counter[str]) -> None:
        self.has_more = False
        """Something has come that the last `ready` did not get to."""
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
            _is_readable(each)  # until it was asked once, its file may never say that something is new
        address_book.port = int(self._listener.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self._own_address = address_book.own_address.encode()

    def send(self, endpoint: str, frame: bytes) -> bool:
        """Send a frame to an endpoint; False if that cannot be now."""
        try:
            self.connect(endpoint).send(frame, zmq.NOBLOCK)
        except zmq.Again:  # not connected, or not yet, or too much waits there
            return False
        return True

    def connect(self, endpoint: str) -> zmq.Socket[bytes]:
        """Begin to connect to an endpoint that will be sent to."""
        if (known := self._outbound.get(endpoint)) is not None:
            return known
        way = self._outbound[endpoint] = self._create_socket(zmq.DEALER)
        way.setsockopt(zmq.ROUTING_ID, self._own_address)
        way.setsockopt(zmq.CURVE_SERVERKEY, self._public)
        way.setsockopt(zmq.IMMEDIATE, 1)  # what is sent while nobody is there is refused, not kept
        way.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
        way.setsockopt(zmq.RECONNECT_IVL, RECONNECT_INTERVAL_MS)
        with suppress(zmq.ZMQError):  # that is no endpoint: nobody ever is there
            way.connect(f"tcp://{endpoint}")
        return way

    def receive(self, fds: Collection[int]) -> list[tuple[str, bytes]]:
        """The frames that have come, each with the address of its sender. With these files something can be done.

        A file of ZeroMQ says only that something is new: what it is has to be asked for, until there is no more.
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
        """Send nothing more there, nor what waits."""
        if (way := self._outbound.pop(endpoint, None)) is not None:
            way.close(linger=0)

    def close(self) -> None:
        """Close everything; no thread of ZeroMQ is left."""
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
        if not self._counters["refused_key"]:  # it will try again many times
            log.warning("refused somebody without the key of this deployment at %s", self._own_address.decode())
        self._counters["refused_key"] += 1

    def _authenticate(self, zap_request: list[bytes]) -> None:
        """Say whether somebody may come in: only with the one key that all have. See ZeroMQ's RFC 27."""
        version, ticket, _, _, _, mechanism, *shown = zap_request
        is_one_of_us = mechanism == b"CURVE" and compare_digest(z85.encode(shown[0]), self._public)
        code, why = (b"200", b"OK") if is_one_of_us else (b"400", b"unknown key")
        self._zap_socket.send_multipart([version, ticket, code, why, b"", b""])

    def _bind_listener(self, ip: str) -> zmq.Socket[bytes]:
        door = self._create_socket(zmq.ROUTER)
        door.setsockopt(zmq.CURVE_SERVER, 1)
        door.setsockopt(zmq.ROUTER_HANDOVER, 1)  # who connects anew may be here before its old connection is given up
        door.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + ENCRYPTION_OVERHEAD_BYTES)
        try:
            door.bind(f"tcp://{ip}:*")
        except zmq.ZMQError as error:
            self.close()
            fix = "give every process an IP address of its own host"
            raise MstarError(f"other hosts cannot reach this process at {ip!r}: {error}\n  fix: {fix}") from None
        return door

    def _create_socket(self, kind: int) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.setsockopt(zmq.CURVE_PUBLICKEY, self._public)
        made.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
        made.setsockopt(zmq.SNDHWM, MAX_QUEUED_FRAMES)
        made.setsockopt(zmq.RCVHWM, MAX_QUEUED_FRAMES)
        made.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_INTERVAL_MS)
        made.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        made.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_TIMEOUT_MS)
        made.setsockopt(zmq.LINGER, 0)
        return made


def _is_readable(to: zmq.Socket[bytes]) -> bool:
    return bool(int(to.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def _derive_key_pair(key: bytes) -> tuple[bytes, bytes]:
    """The secret and the public key that all processes of a deployment have. Neither is ever sent in the clear."""
    secret = z85.encode(blake2b(key=key, digest_size=32, person=b"mstar ports").digest())
    return secret, zmq.curve_public(secret)
