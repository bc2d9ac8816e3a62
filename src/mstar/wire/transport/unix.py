"""Sockets: whole frames between the processes of one host. Nothing here ever waits for anyone.

A frame is its length and its bytes on a unix socket; everybody listens at a path of their own and has one connection to
each path they send to. What a slow reader has not taken is kept up to a limit; beyond it, or while nobody listens
there, a frame is refused, and the link above sends it again. If there are several hosts, a connection begins with the
address of who made it. What frames mean is not known here.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from pathlib import Path

from mstar.wire.frame import MAX_FRAME_BYTES

MAX_QUEUED_BYTES = 1024 * 1024
"""A frame is refused when more than this waits for its reader."""
MAX_READ_BYTES = 1024 * 1024
"""How much is read at once, so that one peer keeps nobody waiting for long."""
LISTEN_BACKLOG = 1024
_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")  # of a peer: process, user, group


class _Outbound:
    """A connection to a path that is sent to, and what its reader has not taken."""

    __slots__ = ("socket", "unsent")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.unsent = bytearray()


class _Inbound:
    """Who has connected, and half a frame of theirs."""

    __slots__ = ("address", "partial", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.partial = bytearray()
        self.address = ""


class UnixTransport:
    """The sockets of one process, watched by one epoll. If there are several hosts, `mine` is its address."""

    def __init__(self, epoll: select.epoll, own_address: str = "") -> None:
        self._epoll = epoll
        self._own_address = own_address.encode()
        self._listeners: dict[int, socket.socket] = {}  # where others connect, by file
        self._inbound: dict[int, _Inbound] = {}
        self._outbound: dict[Path, _Outbound] = {}
        self._blocked: dict[int, Path] = {}  # ways with something kept, by file

    def listen(self, path: Path) -> None:
        """Let others of this user connect here."""
        door = _create_socket()
        door.bind(str(path))
        door.listen(LISTEN_BACKLOG)
        self._listeners[door.fileno()] = door
        self._epoll.register(door.fileno(), select.EPOLLIN)

    def is_full(self, path: Path) -> bool:
        """Whether too much waits for who listens at a path."""
        way = self._outbound.get(path)
        return way is not None and len(way.unsent) > MAX_QUEUED_BYTES

    def send(self, path: Path, frame: bytes) -> bool:
        """Send a frame to who listens at a path; False if that cannot be now."""
        way = self._outbound.get(path) or self._connect(path)
        if way is None or len(way.unsent) > MAX_QUEUED_BYTES:
            return False
        data = _LENGTH.pack(len(frame)) + frame
        if way.unsent:
            way.unsent += data
            return True
        try:
            sent = way.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # whoever listened is gone
            self.disconnect(path)
            return False
        if sent < len(data):
            way.unsent += memoryview(data)[sent:]
            self._blocked[way.socket.fileno()] = path
            self._epoll.register(way.socket.fileno(), select.EPOLLOUT)
        return True

    def receive(self, fd: int) -> list[tuple[str, bytes]]:
        """Something can be done with one of the sockets; what frames have come of it, with their sender's address."""
        if fd in self._inbound:
            return self._read(fd)
        if fd in self._listeners:
            self._accept(self._listeners[fd])
        elif fd in self._blocked:
            self._flush(self._blocked[fd])
        return []

    def disconnect(self, path: Path) -> None:
        """Send nothing more there, nor what is kept."""
        if (way := self._outbound.pop(path, None)) is not None:
            if self._blocked.pop(way.socket.fileno(), None) is not None:
                self._epoll.unregister(way.socket.fileno())
            way.socket.close()

    def close(self) -> None:
        """Close every socket."""
        for path in list(self._outbound):
            self.disconnect(path)
        for each in (*self._listeners.values(), *(comer.socket for comer in self._inbound.values())):
            each.close()
        self._listeners.clear()
        self._inbound.clear()

    def _connect(self, path: Path) -> _Outbound | None:
        connection = _create_socket()
        try:
            connection.connect(str(path))
            if self._own_address:
                connection.send(
                    _LENGTH.pack(len(self._own_address)) + self._own_address
                )  # a new connection has room for it
        except OSError:  # not there, or not yet, or too many wait there
            connection.close()
            return None
        way = self._outbound[path] = _Outbound(connection)
        return way

    def _accept(self, listener: socket.socket) -> None:
        comer, _ = listener.accept()
        size = _CREDENTIALS.size
        _, user, _ = _CREDENTIALS.unpack(comer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        if user != os.getuid():
            comer.close()
            return
        comer.setblocking(False)
        self._inbound[comer.fileno()] = _Inbound(comer)
        self._epoll.register(comer.fileno(), select.EPOLLIN)

    def _read(self, fd: int) -> list[tuple[str, bytes]]:
        comer = self._inbound[fd]
        begun = comer.partial
        try:
            data = comer.socket.recv(MAX_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if begun:
            begun += data
        frames, used = _split_frames(begun or data)
        if not data or used < 0:  # it has hung up, or what it says is nonsense
            self._epoll.unregister(fd)
            comer.socket.close()
            del self._inbound[fd]
        elif begun:
            del begun[:used]
        else:
            begun += data[used:]
        if self._own_address and frames and not comer.address:
            comer.address = frames.pop(0).decode(errors="replace")
        return [(comer.address, frame) for frame in frames]

    def _flush(self, path: Path) -> None:
        """A slow reader has taken something: send what is kept."""
        way = self._outbound[path]
        try:
            sent = way.socket.send(way.unsent)
        except BlockingIOError:
            return
        except OSError:
            self.disconnect(path)
            return
        del way.unsent[:sent]
        if not way.unsent:
            del self._blocked[way.socket.fileno()]
            self._epoll.unregister(way.socket.fileno())


def _create_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def _split_frames(data: bytes | bytearray) -> tuple[list[bytes], int]:
    """The whole frames in some bytes, and how many bytes they are; -1 if a frame is longer than any may be."""
    frames: list[bytes] = []
    at, end = 0, len(data)
    while end - at >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data, at)
        if length > MAX_FRAME_BYTES:
            return frames, -1
        if end - at - _LENGTH.size < length:
            break
        at += _LENGTH.size + length
        frames.append(bytes(data[at - length : at]))
    return frames, at
