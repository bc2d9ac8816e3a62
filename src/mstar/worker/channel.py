"""Channel between a worker and a child process of it: a socket pair with values in frames, in the order of sending."""

from __future__ import annotations

import socket
import struct
from typing import Any, Self

from mstar.transfer import values

_LENGTH = struct.Struct("<Q")


class Channel:
    """One end of a channel. Sending waits while the other end does not read."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("rb")
        self.bytes_moved = 0
        """Bytes of the values that were sent and received."""

    @classmethod
    def from_descriptor(cls, number: int) -> Self:
        """The end that the process inherited as this descriptor."""
        return cls(socket.socket(fileno=number))

    def send(self, value: Any) -> None:
        """Send a value. Raises NotSerializable, having sent nothing, or OSError."""
        data = values.pack(value)
        self._connection.sendall(_LENGTH.pack(len(data)) + data)
        self.bytes_moved += len(data)

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for a value. Raises EOFError after the other end was closed, and OSError after `timeout_s`."""
        self._connection.settimeout(timeout_s)
        try:
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
            self.bytes_moved += length
            return values.unpack(self._read(length))
        finally:
            self._connection.settimeout(None)  # it holds for sending too

    def _read(self, size: int) -> bytes:
        data = self._reader.read(size)
        if len(data) < size:
            raise EOFError("the other process has closed its end")
        return data

    def close(self) -> None:
        """Close this end, which ends a wait of the other one."""
        self._reader.close()
        self._connection.close()
