"""Messages between the server that has a session and one that keeps its copy, as MessagePack over a WebSocket."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mstar.server.realtime.backup.session_copy import SessionKey, SessionUpdate
from mstar.server.realtime.backup.stored_copies import Outcome


class UpdateResult(msgspec.Struct, frozen=True, tag=True):
    """What became of an update. Results have the order of the updates."""

    outcome: Outcome


class SessionEnded(msgspec.Struct, frozen=True, tag=True):
    """A session has ended: its copy is not needed any more."""

    key: SessionKey
    epoch: int


class TakeSession(msgspec.Struct, frozen=True, tag=True):
    """The client of a session has connected to the sender, which takes the session over."""

    key: SessionKey
    epoch: int
    """Epoch that the session will have at the sender. A receiver that knows a later one has no copy for it."""
    asks_siblings: bool = True
    """Whether the other front ends of the receiver are to be asked too."""


class SessionTaken(msgspec.Struct, frozen=True, tag=True):
    """Reply to `TakeSession`."""

    session: SessionUpdate | None
    """The whole session; None without a copy."""
    epoch: int
    """Highest epoch that is known."""


MAX_CHUNK_BYTES = 4 << 20
_MORE, _LAST = b"\x01", b"\x00"
ToBackup = SessionUpdate | SessionEnded | TakeSession
FromBackup = UpdateResult | SessionTaken
_TO_BACKUP = msgspec.msgpack.Decoder(ToBackup)
_FROM_BACKUP = msgspec.msgpack.Decoder(FromBackup)


def encode(message: ToBackup | FromBackup) -> bytes:
    """Encode a message."""
    return msgspec.msgpack.encode(message)


def decode_to_backup(content: bytes) -> ToBackup:
    """Decode a message to a server with copies. Raises msgspec.DecodeError."""
    return _TO_BACKUP.decode(content)


def to_chunks(content: bytes) -> Iterator[bytes]:
    """Split an encoded message: a server accepts less in one message of a WebSocket than a session can have."""
    for start in range(0, len(content), MAX_CHUNK_BYTES):
        is_last = start + MAX_CHUNK_BYTES >= len(content)
        yield (_LAST if is_last else _MORE) + content[start : start + MAX_CHUNK_BYTES]


class ChunkReader:
    """Joins the chunks of messages."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, chunk: bytes) -> bytes | None:
        """The message that a chunk completes."""
        self._received += chunk[1:]
        if chunk[:1] != _LAST:
            return None
        content, self._received = bytes(self._received), bytearray()
        return content


def decode_from_backup(content: bytes) -> FromBackup:
    """Decode a message of a server with copies. Raises msgspec.DecodeError."""
    return _FROM_BACKUP.decode(content)
