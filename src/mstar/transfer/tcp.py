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

from mstar.transfer.arena import Memory
from mstar.transfer.stores import Far, Stale, Unreached

CONNECT_S = 2.0
PATIENCE_S = 5.0
"""How long nothing may come before the far end is given up."""
_REQUEST = struct.Struct("<QBQQQQ")
"""Number of the request on its connection, kind, slot, offset, length, generation."""
_READ, _FREE = 1, 2
_NO, _YES = b"\0", b"\1"
_ALIVE = 5
"""After so many idle seconds the kernel asks whether the far end is there, every so many seconds, so many times."""
_NONCE_BYTES = 16
_MAC_BYTES = 16
_PERSON = b"mstar-tcp-store"
"""What is signed here means nothing elsewhere."""


@dataclass(slots=True)
class _Line:
    """A connection, and what both ends sign with on it."""

    socket: socket.socket
    key: bytes
    nonce: bytes
    number: int = 0

    def mac(self, request: bytes, verdict: bytes = b"") -> bytes:
        return blake2b(self.nonce + request + verdict, key=self.key, digest_size=_MAC_BYTES, person=_PERSON).digest()

    def hear(self, size: int) -> bytes:
        """Exactly so many bytes. Raises OSError, also at the end."""
        data = bytearray(size)
        self.hear_into(memoryview(data))
        return bytes(data)

    def hear_into(self, memory: memoryview) -> None:
        while memory:
            count = self.socket.recv_into(memory)
            if not count:
                raise ConnectionResetError("the connection was closed")
            memory = memory[count:]


class TcpStore:
    """Reads slots of other hosts, and gives those of this process's arena to whoever has the key."""

    def __init__(self, ip: str, key: bytes, memory: Memory) -> None:
        self._key = key
        self._memory = memory
        self._lock = threading.Lock()
        self._idle: dict[str, list[_Line]] = {}
        """By target, the connections that nobody uses now."""
        self._serving: dict[socket.socket, threading.Thread] = {}
        self._listener = socket.create_server((ip, 0))
        self.name = f"tcp {ip}:{self._listener.getsockname()[1]}"
        self._acceptor = threading.Thread(target=self._accept, name="mstar-store", daemon=True)
        self._acceptor.start()

    def admit(self, address: int, size: int) -> None:
        """Any memory will do."""

    def dismiss(self, address: int) -> None:
        """Nothing is known of it."""

    # ------------------------------------------------------------ asking
    def read(self, far: Far, address: int, into: memoryview) -> None:  # noqa: ARG002 - for stores that need it
        """Read a slot; the far end marks it. Raises Unreached, Stale."""
        if not self._ask(_READ, far, into[: far.length]):
            raise Stale

    def free(self, far: Far) -> None:
        """Mark a slot as read that will not be read. Raises Unreached."""
        self._ask(_FREE, far, memoryview(b""))

    def forget(self, target: str) -> None:
        """Close the connections to a process that is gone."""
        with self._lock:
            lines = self._idle.pop(target, [])
        for line in lines:
            line.socket.close()

    def _ask(self, kind: int, far: Far, into: memoryview) -> bool:
        """Ask over a connection that is there, or else over a new one. Raises Unreached."""
        with self._lock:
            lines = self._idle.setdefault(far.target, [])
            line = lines.pop() if lines else None
        if line is not None:
            try:
                return self._over(line, kind, far, into)
            except TimeoutError as error:
                raise Unreached(f"nothing came for {PATIENCE_S:.0f} s") from error
            except OSError:
                pass  # it had been closed meanwhile
        try:
            return self._over(self._connect(far.target), kind, far, into)
        except (OSError, ValueError, OverflowError, struct.error) as error:
            raise Unreached(f"{type(error).__name__}: {error}") from error

    def _over(self, line: _Line, kind: int, far: Far, into: memoryview) -> bool:
        """One request and its answer. A connection on which anything goes wrong is closed."""
        try:
            line.number += 1
            request = _REQUEST.pack(line.number, kind, far.slot, far.offset, far.length, far.generation)
            line.socket.sendall(request + line.mac(request))
            if line.hear(1) == _YES:
                line.hear_into(into)
            end = line.hear(1 + _MAC_BYTES)
            if not compare_digest(line.mac(request, end[:1]), end[1:]):
                raise ConnectionAbortedError("who answers there does not have the key")
        except BaseException:
            line.socket.close()
            raise
        with self._lock:
            lines = self._idle.get(far.target)
            if lines is not None:
                lines.append(line)
        if lines is None:
            line.socket.close()
        return end[:1] == _YES

    def _connect(self, target: str) -> _Line:
        ip, _, port = target.rpartition(":")
        made = socket.create_connection((ip, int(port)), CONNECT_S)
        try:
            _set_up(made)
            line = _Line(made, self._key, b"")
            line.nonce = line.hear(_NONCE_BYTES)
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
            thread = threading.Thread(target=self._serve, args=(made,), name="mstar-store-line", daemon=True)
            with self._lock:
                self._serving[made] = thread
            thread.start()

    def _serve(self, made: socket.socket) -> None:
        with made, contextlib.suppress(OSError, ValueError, IndexError):  # a reader that is gone asks again, or nobody
            _set_up(made)
            line = _Line(made, self._key, secrets.token_bytes(_NONCE_BYTES))
            made.sendall(line.nonce)
            while self._answer(line):
                made.settimeout(None)  # who has the key may take its time
        with self._lock:
            self._serving.pop(made, None)

    def _answer(self, line: _Line) -> bool:
        """Answer one request; whether there may be another."""
        request = line.hear(_REQUEST.size)
        line.socket.settimeout(PATIENCE_S)
        line.number += 1
        number, kind, slot, offset, length, generation = _REQUEST.unpack(request)
        if not compare_digest(line.hear(_MAC_BYTES), line.mac(request)) or number != line.number:
            return False
        memory = self._memory
        verdict = _YES if memory.holds(slot, generation, offset, length) else _NO
        if verdict == _YES and kind == _READ:
            line.socket.sendall(_YES)
            line.socket.sendall(memory.view[offset : offset + length])
            verdict = _YES if memory.holds(slot, generation, offset, length) else _NO
        else:
            line.socket.sendall(_NO)
        if verdict == _YES:
            memory.mark(slot, generation)
        line.socket.sendall(verdict + line.mac(request, verdict))
        return True

    def close(self) -> None:
        """End all threads and connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        with self._lock:
            serving = dict(self._serving)
        for made in serving:
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)
        for thread in serving.values():
            thread.join()
        for target in list(self._idle):
            self.forget(target)


def _set_up(made: socket.socket) -> None:
    made.settimeout(PATIENCE_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that is gone does not say so
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
        made.setsockopt(socket.IPPROTO_TCP, option, _ALIVE)
