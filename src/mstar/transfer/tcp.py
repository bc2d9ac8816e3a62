"""A store without any library: connections over which a process asks for a slot and gets its bytes.

Whoever asks proves with each request that it has the deployment's key, and whoever answers proves with the end of each
answer that it has it too, for this very request. The bytes themselves are neither encrypted nor signed: between the
hosts there has to be a network of one's own.

    server: nonce      client: kind, slot, offset, length, generation | MAC      server: 1, bytes, 1 or 0 | MAC
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import threading
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest

from mstar.transfer.arena import ArenaMemory
from mstar.transfer.remote_store import PeerUnreachable, RemoteSlot, StaleSlot

CONNECT_TIMEOUT_S = 2.0
TRANSFER_TIMEOUT_S = 5.0
"""How long nothing may come before the far end is given up."""
_REQUEST = struct.Struct("<QBQQQQ")
"""Number of the request on its connection, kind, slot, offset, length, generation."""
_READ, _FREE = 1, 2
_NO, _YES = b"\0", b"\1"
_KEEPALIVE = 5
"""After so many idle seconds the kernel asks whether the far end is there, every so many seconds, so many times."""
_NONCE_BYTES = 16
_MAC_BYTES = 16
_HASH_PERSON = b"mstar-tcp-store"
"""What is signed here means nothing elsewhere."""


@dataclass(slots=True)
class _Connection:
    """A connection, and what both ends sign with on it."""

    socket: socket.socket
    key: bytes
    nonce: bytes
    number: int = 0

    def mac(self, request: bytes, verdict: bytes = b"") -> bytes:
        return blake2b(
            self.nonce + request + verdict, key=self.key, digest_size=_MAC_BYTES, person=_HASH_PERSON
        ).digest()

    def receive(self, size: int) -> bytes:
        """Exactly so many bytes. Raises OSError, also at the end."""
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
    """Reads slots of other hosts, and gives those of this process's arena to whoever has the key."""

    def __init__(self, ip: str, key: bytes, memory: ArenaMemory) -> None:
        self._key = key
        self._memory = memory
        self._lock = threading.Lock()
        self._idle: dict[str, list[_Connection]] = {}
        """By target, the connections that nobody uses now."""
        self._serving: dict[socket.socket, threading.Thread] = {}
        self._listener = socket.create_server((ip, 0))
        self.name = f"tcp {ip}:{self._listener.getsockname()[1]}"
        self._accept_thread = threading.Thread(target=self._accept, name="mstar-store", daemon=True)
        self._accept_thread.start()

    def register_memory(self, address: int, size: int) -> None:
        """Any memory will do."""

    def unregister_memory(self, address: int) -> None:
        """Nothing is known of it."""

    # ------------------------------------------------------------ asking
    def read(self, slot: RemoteSlot, address: int, into: memoryview) -> None:  # noqa: ARG002 - for stores that need it
        """Read a slot; the far end marks it. Raises Unreached, Stale."""
        if not self._request(_READ, slot, into[: slot.length]):
            raise StaleSlot

    def free(self, slot: RemoteSlot) -> None:
        """Mark a slot as read that will not be read. Raises Unreached."""
        self._request(_FREE, slot, memoryview(b""))

    def forget(self, target: str) -> None:
        """Close the connections to a process that is gone."""
        with self._lock:
            lines = self._idle.pop(target, [])
        for line in lines:
            line.socket.close()

    def _request(self, kind: int, slot: RemoteSlot, into: memoryview) -> bool:
        """Ask over a connection that is there, or else over a new one. Raises Unreached."""
        with self._lock:
            lines = self._idle.setdefault(slot.target, [])
            line = lines.pop() if lines else None
        if line is not None:
            try:
                return self._exchange(line, kind, slot, into)
            except TimeoutError as error:
                raise PeerUnreachable(f"nothing came for {TRANSFER_TIMEOUT_S:.0f} s") from error
            except OSError:
                pass  # it had been closed meanwhile
        try:
            return self._exchange(self._connect(slot.target), kind, slot, into)
        except (OSError, ValueError, OverflowError, struct.error) as error:
            raise PeerUnreachable(f"{type(error).__name__}: {error}") from error

    def _exchange(self, connection: _Connection, kind: int, slot: RemoteSlot, into: memoryview) -> bool:
        """One request and its answer. A connection on which anything goes wrong is closed."""
        try:
            connection.number += 1
            request = _REQUEST.pack(connection.number, kind, slot.slot, slot.offset, slot.length, slot.generation)
            connection.socket.sendall(request + connection.mac(request))
            if connection.receive(1) == _YES:
                connection.receive_into(into)
            end = connection.receive(1 + _MAC_BYTES)
            if not compare_digest(connection.mac(request, end[:1]), end[1:]):
                raise ConnectionAbortedError("who answers there does not have the key")
        except BaseException:
            connection.socket.close()
            raise
        with self._lock:
            lines = self._idle.get(slot.target)
            if lines is not None:
                lines.append(connection)
        if lines is None:
            connection.socket.close()
        return end[:1] == _YES

    def _connect(self, target: str) -> _Connection:
        ip, _, port = target.rpartition(":")
        made = socket.create_connection((ip, int(port)), CONNECT_TIMEOUT_S)
        try:
            _configure_socket(made)
            line = _Connection(made, self._key, b"")
            line.nonce = line.receive(_NONCE_BYTES)
        except BaseException:
            made.close()
            raise
        return line

    # ------------------------------------------------------------ answering
    def _accept(self) -> None:
        while True:
            try:
                made, _ = self._listener.accept()
            except OSError:
                return  # closed
            thread = threading.Thread(target=self._serve, args=(made,), name="mstar-store-connection", daemon=True)
            with self._lock:
                self._serving[made] = thread
            thread.start()

    def _serve(self, made: socket.socket) -> None:
        with made, contextlib.suppress(OSError, ValueError, IndexError):  # a reader that is gone asks again, or nobody
            _configure_socket(made)
            line = _Connection(made, self._key, secrets.token_bytes(_NONCE_BYTES))
            made.sendall(line.nonce)
            while self._serve_request(line):
                made.settimeout(None)  # who has the key may take its time
        with self._lock:
            self._serving.pop(made, None)

    def _serve_request(self, connection: _Connection) -> bool:
        """Answer one request; whether there may be another."""
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
        """End all threads and connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accept_thread.join()
        with self._lock:
            serving = dict(self._serving)
        for made in serving:
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)
        for thread in serving.values():
            thread.join()
        for target in list(self._idle):
            self.forget(target)


def _configure_socket(made: socket.socket) -> None:
    made.settimeout(TRANSFER_TIMEOUT_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that is gone does not say so
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
        made.setsockopt(socket.IPPROTO_TCP, option, _KEEPALIVE)
