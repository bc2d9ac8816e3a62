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

from mstar.wire.frame import FRAME_BYTES

KEPT_BYTES = 1024 * 1024
"""A frame is refused when more than this waits for its reader."""
READ_BYTES = 1024 * 1024
"""How much is read at once, so that one peer keeps nobody waiting for long."""
BACKLOG = 1024
_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")  # of a peer: process, user, group


class _Way:
    """A connection to a path that is sent to, and what its reader has not taken."""

    __slots__ = ("kept", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.kept = bytearray()


class _Comer:
    """Who has connected, and half a frame of theirs."""

    __slots__ = ("address", "begun", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.begun = bytearray()
        self.address = ""


class Sockets:
    """The sockets of one process, watched by one epoll. If there are several hosts, `mine` is its address."""

    def __init__(self, epoll: select.epoll, mine: str = "") -> None:
        self._epoll = epoll
        self._mine = mine.encode()
        self._doors: dict[int, socket.socket] = {}  # where others connect, by file
        self._comers: dict[int, _Comer] = {}
        self._ways: dict[Path, _Way] = {}
        self._full: dict[int, Path] = {}  # ways with something kept, by file

    def listen(self, path: Path) -> None:
        """Let others of this user connect here."""
        door = _unix_socket()
        door.bind(str(path))
        door.listen(BACKLOG)
        self._doors[door.fileno()] = door
        self._epoll.register(door.fileno(), select.EPOLLIN)

    def is_full(self, path: Path) -> bool:
        """Whether too much waits for who listens at a path."""
        way = self._ways.get(path)
        return way is not None and len(way.kept) > KEPT_BYTES

    def send(self, path: Path, frame: bytes) -> bool:
        """Send a frame to who listens at a path; False if that cannot be now."""
        way = self._ways.get(path) or self._connect(path)
        if way is None or len(way.kept) > KEPT_BYTES:
            return False
        data = _LENGTH.pack(len(frame)) + frame
        if way.kept:
            way.kept += data
            return True
        try:
            sent = way.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # whoever listened is gone
            self.leave(path)
            return False
        if sent < len(data):
            way.kept += memoryview(data)[sent:]
            self._full[way.socket.fileno()] = path
            self._epoll.register(way.socket.fileno(), select.EPOLLOUT)
        return True

    def ready(self, file: int) -> list[tuple[str, bytes]]:
        """Something can be done with one of the sockets; what frames have come of it, with their sender's address."""
        if file in self._comers:
            return self._read(file)
        if file in self._doors:
            self._welcome(self._doors[file])
        elif file in self._full:
            self._go_on(self._full[file])
        return []

    def leave(self, path: Path) -> None:
        """Send nothing more there, nor what is kept."""
        if (way := self._ways.pop(path, None)) is not None:
            if self._full.pop(way.socket.fileno(), None) is not None:
                self._epoll.unregister(way.socket.fileno())
            way.socket.close()

    def close(self) -> None:
        """Close every socket."""
        for path in list(self._ways):
            self.leave(path)
        for each in (*self._doors.values(), *(comer.socket for comer in self._comers.values())):
            each.close()
        self._doors.clear()
        self._comers.clear()

    def _connect(self, path: Path) -> _Way | None:
        connection = _unix_socket()
        try:
            connection.connect(str(path))
            if self._mine:
                connection.send(_LENGTH.pack(len(self._mine)) + self._mine)  # a new connection has room for it
        except OSError:  # not there, or not yet, or too many wait there
            connection.close()
            return None
        way = self._ways[path] = _Way(connection)
        return way

    def _welcome(self, door: socket.socket) -> None:
        comer, _ = door.accept()
        size = _CREDENTIALS.size
        _, user, _ = _CREDENTIALS.unpack(comer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        if user != os.getuid():
            comer.close()
            return
        comer.setblocking(False)
        self._comers[comer.fileno()] = _Comer(comer)
        self._epoll.register(comer.fileno(), select.EPOLLIN)

    def _read(self, file: int) -> list[tuple[str, bytes]]:
        comer = self._comers[file]
        begun = comer.begun
        try:
            data = comer.socket.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if begun:
            begun += data
        frames, used = _frames(begun or data)
        if not data or used < 0:  # it has hung up, or what it says is nonsense
            self._epoll.unregister(file)
            comer.socket.close()
            del self._comers[file]
        elif begun:
            del begun[:used]
        else:
            begun += data[used:]
        if self._mine and frames and not comer.address:
            comer.address = frames.pop(0).decode(errors="replace")
        return [(comer.address, frame) for frame in frames]

    def _go_on(self, path: Path) -> None:
        """A slow reader has taken something: send what is kept."""
        way = self._ways[path]
        try:
            sent = way.socket.send(way.kept)
        except BlockingIOError:
            return
        except OSError:
            self.leave(path)
            return
        del way.kept[:sent]
        if not way.kept:
            del self._full[way.socket.fileno()]
            self._epoll.unregister(way.socket.fileno())


def _unix_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def _frames(data: bytes | bytearray) -> tuple[list[bytes], int]:
    """The whole frames in some bytes, and how many bytes they are; -1 if a frame is longer than any may be."""
    frames: list[bytes] = []
    at, end = 0, len(data)
    while end - at >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data, at)
        if length > FRAME_BYTES:
            return frames, -1
        if end - at - _LENGTH.size < length:
            break
        at += _LENGTH.size + length
        frames.append(bytes(data[at - length : at]))
    return frames, at
