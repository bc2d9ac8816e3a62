"""Unix-socket transport: length-prefixed frames between processes of one host. Never blocks.

Every actor listens at its own path; a process has one connection per path that it sends to. Data that a slow reader has
not taken is queued up to a limit (backpressure). Above it, or without a listener, `send` refuses the frame and the link
resends it later. Peers of other users are rejected by their socket credentials. With several hosts, a connection starts
with the address of its sender. Frames are opaque here.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from pathlib import Path

from mstar.wire.frame import MAX_FRAME_BYTES

MAX_QUEUED_BYTES = 1024 * 1024
"""Maximum queued bytes per reader before frames are refused."""
MAX_READ_BYTES = 1024 * 1024
"""Maximum bytes per read, so that one peer does not delay the others."""
LISTEN_BACKLOG = 1024
_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class _Outbound:
    """Connection to a path, and the bytes that its reader has not taken."""

    __slots__ = ("socket", "unsent")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.unsent = bytearray()


class _Inbound:
    """Accepted connection, and the incomplete frame received last."""

    __slots__ = ("address", "partial", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.partial = bytearray()
        self.address = ""


class UnixTransport:
    """Unix sockets of one process, polled by one epoll. `own_address` is set if there are several hosts."""

    def __init__(self, epoll: select.epoll, own_address: str = "") -> None:
        self._epoll = epoll
        self._own_address = own_address.encode()
        self._listeners: dict[int, socket.socket] = {}  # by descriptor
        self._inbound: dict[int, _Inbound] = {}
        self._outbound: dict[Path, _Outbound] = {}
        self._blocked: dict[int, Path] = {}  # connections with queued bytes, by descriptor

    def listen(self, path: Path) -> None:
        """Listen at a path, for processes of the same user."""
        listener = _create_socket()
        listener.bind(str(path))
        listener.listen(LISTEN_BACKLOG)
        self._listeners[listener.fileno()] = listener
        self._epoll.register(listener.fileno(), select.EPOLLIN)

    def is_full(self, path: Path) -> bool:
        """Whether the queue of a reader is full."""
        outbound = self._outbound.get(path)
        return outbound is not None and len(outbound.unsent) > MAX_QUEUED_BYTES

    def send(self, path: Path, frame: bytes) -> bool:
        """Send or queue a frame. Returns False if the reader is absent or its queue full."""
        outbound = self._outbound.get(path) or self._connect(path)
        if outbound is None:
            return False
        size = len(frame)
        data = _LENGTH.pack(size) + frame
        if outbound.unsent:
            if len(outbound.unsent) > MAX_QUEUED_BYTES:
                return False
            outbound.unsent += data
            return True
        try:
            sent = outbound.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # the listener has exited
            self.disconnect(path)
            return False
        if sent < _LENGTH.size + size:
            outbound.unsent += memoryview(data)[sent:]
            self._blocked[outbound.socket.fileno()] = path
            self._epoll.register(outbound.socket.fileno(), select.EPOLLOUT)
        return True

    def receive(self, fd: int) -> list[tuple[str, bytes]]:
        """Handle a ready descriptor. Returns the received frames with the address of their sender."""
        if fd in self._inbound:
            return self._read(fd)
        if fd in self._listeners:
            self._accept(self._listeners[fd])
        elif fd in self._blocked:
            self._flush(self._blocked[fd])
        return []

    def disconnect(self, path: Path) -> None:
        """Close the connection to a path and drop its queue."""
        if (outbound := self._outbound.pop(path, None)) is not None:
            if self._blocked.pop(outbound.socket.fileno(), None) is not None:
                self._epoll.unregister(outbound.socket.fileno())
            outbound.socket.close()

    def close(self) -> None:
        """Close all sockets."""
        for path in list(self._outbound):
            self.disconnect(path)
        for each in (*self._listeners.values(), *(inbound.socket for inbound in self._inbound.values())):
            each.close()
        self._listeners.clear()
        self._inbound.clear()

    def _connect(self, path: Path) -> _Outbound | None:
        connection = _create_socket()
        try:
            connection.connect(str(path))
            if self._own_address:
                connection.send(_LENGTH.pack(len(self._own_address)) + self._own_address)  # fits an empty socket buffer
        except OSError:  # no listener, not yet, or its backlog is full
            connection.close()
            return None
        outbound = self._outbound[path] = _Outbound(connection)
        return outbound

    def _accept(self, listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        size = _CREDENTIALS.size
        _, uid, _ = _CREDENTIALS.unpack(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        if uid != os.getuid():
            accepted.close()
            return
        accepted.setblocking(False)
        self._inbound[accepted.fileno()] = _Inbound(accepted)
        self._epoll.register(accepted.fileno(), select.EPOLLIN)

    def _read(self, fd: int) -> list[tuple[str, bytes]]:
        inbound = self._inbound[fd]
        partial = inbound.partial
        try:
            data = inbound.socket.recv(MAX_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if partial:
            partial += data
        frames, used = _split_frames(partial or data)
        if not data or used < 0:  # closed by the peer, or invalid data
            self._epoll.unregister(fd)
            inbound.socket.close()
            del self._inbound[fd]
        elif partial:
            del partial[:used]
        else:
            partial += data[used:]
        if self._own_address and frames and not inbound.address:
            inbound.address = frames.pop(0).decode(errors="replace")
        return [(inbound.address, frame) for frame in frames]

    def _flush(self, path: Path) -> None:
        """Send queued bytes: the reader has caught up."""
        outbound = self._outbound[path]
        try:
            sent = outbound.socket.send(outbound.unsent)
        except BlockingIOError:
            return
        except OSError:
            self.disconnect(path)
            return
        del outbound.unsent[:sent]
        if not outbound.unsent:
            del self._blocked[outbound.socket.fileno()]
            self._epoll.unregister(outbound.socket.fileno())


def _create_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def _split_frames(data: bytes | bytearray) -> tuple[list[bytes], int]:
    """Split complete frames off. Returns them and the bytes used; -1 if a frame exceeds the limit."""
    frames: list[bytes] = []
    position, size = 0, len(data)
    if size > _LENGTH.size and _LENGTH.unpack_from(data)[0] == size - _LENGTH.size <= MAX_FRAME_BYTES:
        return [bytes(data[_LENGTH.size :])], size  # the common case: one frame
    while size - position >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data, position)
        if length > MAX_FRAME_BYTES:
            return frames, -1
        if size - position - _LENGTH.size < length:
            break
        position += _LENGTH.size + length
        frames.append(bytes(data[position - length : position]))
    return frames, position
