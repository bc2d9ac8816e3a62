"""Remote store over plain TCP: request a slot of an arena, receive its bytes. Needs no library.

Both sides prove with a MAC that they have the deployment key: the client per request, the server per reply, bound to
that request. The data is neither encrypted nor authenticated: use it on a private network only.

    server: nonce      client: kind, slot, offset, length, generation | MAC      server: 1, bytes, 1 or 0 | MAC
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest

from mstar.transfer.arena import ArenaMemory
from mstar.transfer.remote_store import PeerUnreachable, RemoteSlot, StaleSlot

CONNECT_TIMEOUT_S = 2.0
"""Timeout of a connection attempt in seconds."""
TRANSFER_TIMEOUT_S = 5.0
"""Seconds without data before a transfer times out."""
_REQUEST = struct.Struct("<QBQQQQ")
"""Sequence number on the connection, kind, slot, offset, length, generation."""
_READ = 1
_FREE = 2
_NO = b"\0"
_YES = b"\1"
_KEEPALIVE = 5
"""TCP keepalive: idle seconds, interval in seconds, and number of probes."""
_NONCE_BYTES = 16
_MAC_BYTES = 16
_HASH_PERSON = b"mstar-tcp-store"
"""Domain separation: a MAC of this protocol is invalid elsewhere."""


@dataclass(slots=True)
class _Connection:
    """A connection with the key and nonce of its MACs."""

    socket: socket.socket
    key: bytes
    nonce: bytes
    number: int = 0

    def mac(self, request: bytes, verdict: bytes = b"") -> bytes:
        return blake2b(
            self.nonce + request + verdict, key=self.key, digest_size=_MAC_BYTES, person=_HASH_PERSON
        ).digest()

    def receive(self, size: int) -> bytes:
        """Read exactly `size` bytes. Raises OSError, also at end of file."""
        data = bytearray(size)
        self.receive_into(memoryview(data))
        return bytes(data)

    def receive_into(self, memory: memoryview) -> None:
        while memory:
            count = self.socket.recv_into(memory)
            if not count:
                raise ConnectionResetError("the connection was closed")
            memory = memory[count:]


class TcpStore:
    """Reads slots of other hosts, and serves the arena of this process to holders of the key."""

    def __init__(self, ip: str, key: bytes, memory: ArenaMemory) -> None:
        self._key = key
        self._memory = memory
        self._lock = threading.Lock()
        self._idle: dict[str, list[_Connection]] = {}
        """Idle connections, by target."""
        self._serving: dict[socket.socket, threading.Thread] = {}
        self._listener = socket.create_server((ip, 0))
        self.name = f"tcp {ip}:{self._listener.getsockname()[1]}"
        self._accept_thread = threading.Thread(target=self._accept, name="mstar-store", daemon=True)
        self._accept_thread.start()

    def register_memory(self, address: int, size: int) -> None:
        """Unused: TCP reads into any memory."""

    def unregister_memory(self, address: int) -> None:
        """Unused."""

    serves_exports = False

    def serve_memory(self, address: int, size: int) -> None:
        """Unused: exports are copied to the arena."""

    def stop_serving(self, address: int) -> None:
        """Unused."""

    # ------------------------------------------------------------ client
    def read(
        self,
        slot: RemoteSlot,
        address: int,  # noqa: ARG002 - RemoteStore interface
        into: memoryview,
        exports: Sequence[tuple[int, memoryview]] = (),  # noqa: ARG002 - RemoteStore interface
    ) -> None:
        """Read a slot; the server marks it as read. Raises PeerUnreachable or StaleSlot."""
        if not self._request(_READ, slot, into[: slot.length]):
            raise StaleSlot

    def free(self, slot: RemoteSlot) -> None:
        """Mark a slot as read without reading it. Raises PeerUnreachable."""
        self._request(_FREE, slot, memoryview(b""))

    def forget(self, target: str) -> None:
        """Close the connections to a target."""
        with self._lock:
            idle = self._idle.pop(target, [])
        for connection in idle:
            connection.socket.close()

    def _request(self, kind: int, slot: RemoteSlot, into: memoryview) -> bool:
        """Send a request over an idle connection, or a new one. Raises PeerUnreachable."""
        with self._lock:
            idle = self._idle.setdefault(slot.target, [])
            connection = idle.pop() if idle else None
        if connection is not None:
            try:
                return self._exchange(connection, kind, slot, into)
            except TimeoutError as error:
                raise PeerUnreachable(f"no data for {TRANSFER_TIMEOUT_S:.0f} s") from error
            except OSError:
                pass  # closed by the server meanwhile: use a new connection
        try:
            return self._exchange(self._connect(slot.target), kind, slot, into)
        except (OSError, ValueError, OverflowError, struct.error) as error:
            raise PeerUnreachable(f"{type(error).__name__}: {error}") from error

    def _exchange(self, connection: _Connection, kind: int, slot: RemoteSlot, into: memoryview) -> bool:
        """One request and its reply. Closes the connection on any error."""
        try:
            connection.number += 1
            request = _REQUEST.pack(connection.number, kind, slot.slot, slot.offset, slot.length, slot.generation)
            connection.socket.sendall(request + connection.mac(request))
            if connection.receive(1) == _YES:
                connection.receive_into(into)
            end = connection.receive(1 + _MAC_BYTES)
            if not compare_digest(connection.mac(request, end[:1]), end[1:]):
                raise ConnectionAbortedError("the server does not have the key")
        except BaseException:
            connection.socket.close()
            raise
        with self._lock:
            idle = self._idle.get(slot.target)
            if idle is not None:
                idle.append(connection)
        if idle is None:
            connection.socket.close()
        return end[:1] == _YES

    def _connect(self, target: str) -> _Connection:
        ip, _, port = target.rpartition(":")
        sock = socket.create_connection((ip, int(port)), CONNECT_TIMEOUT_S)
        try:
            _configure_socket(sock)
            connection = _Connection(sock, self._key, b"")
            connection.nonce = connection.receive(_NONCE_BYTES)
        except BaseException:
            sock.close()
            raise
        return connection

    # ------------------------------------------------------------ server
    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # closed
            thread = threading.Thread(target=self._serve, args=(sock,), name="mstar-store-connection", daemon=True)
            with self._lock:
                self._serving[sock] = thread
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, ValueError, IndexError):  # the reader has gone
            _configure_socket(sock)
            connection = _Connection(sock, self._key, secrets.token_bytes(_NONCE_BYTES))
            sock.sendall(connection.nonce)
            while self._serve_request(connection):
                sock.settimeout(None)  # no idle timeout for an authenticated client
        with self._lock:
            self._serving.pop(sock, None)

    def _serve_request(self, connection: _Connection) -> bool:
        """Serve one request. Returns whether the connection stays open."""
        request = connection.receive(_REQUEST.size)
        connection.socket.settimeout(TRANSFER_TIMEOUT_S)
        connection.number += 1
        number, kind, slot, offset, length, generation = _REQUEST.unpack(request)
        if not compare_digest(connection.receive(_MAC_BYTES), connection.mac(request)) or number != connection.number:
            return False
        memory = self._memory
        verdict = _YES if memory.holds(slot, generation, offset, length) else _NO
        if verdict == _YES and kind == _READ:
            connection.socket.sendall(_YES)
            connection.socket.sendall(memory.view[offset : offset + length])
            verdict = _YES if memory.holds(slot, generation, offset, length) else _NO
        else:
            connection.socket.sendall(_NO)
        if verdict == _YES:
            memory.mark_read(slot, generation)
        connection.socket.sendall(verdict + connection.mac(request, verdict))
        return True

    def close(self) -> None:
        """Stop all threads and close all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accept_thread.join()
        with self._lock:
            serving = dict(self._serving)
        for sock in serving:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in serving.values():
            thread.join()
        for target in list(self._idle):
            self.forget(target)


def _configure_socket(sock: socket.socket) -> None:
    sock.settimeout(TRANSFER_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # detects hosts that disappeared
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
        sock.setsockopt(socket.IPPROTO_TCP, option, _KEEPALIVE)
