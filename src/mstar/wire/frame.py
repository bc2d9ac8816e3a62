"""Frames: messages as bytes that nobody without the deployment's key can make or change.

    version, number, ack | both ends: lengths of names, incarnations, names | payload | MAC

The payload is a list of messages in msgpack; a `Value` in it is whatever the codec of the process makes of it. Whether
a frame is new, in order or from a life that is over is not judged here: see link.py and outside.py.
"""

from __future__ import annotations

import struct
from functools import partial
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, NamedTuple, Protocol

import msgspec

from mstar.errors import MstarError, WouldBlock
from mstar.wire.messages import AnyMessage, Message, Peer, Value

VERSION = 1
KEY_BYTES = 32
MAC_BYTES = 16
MAX_NAME_BYTES = 64
MAX_FRAME_BYTES = 64 * 1024 * 1024
_HEADER = struct.Struct("<BQQ")
_PEERS_HEADER = struct.Struct("<BBQQ")
_NAMES_OFFSET_BYTES = _HEADER.size + _PEERS_HEADER.size  # where the names begin
MAX_MESSAGE_BYTES = MAX_FRAME_BYTES - _NAMES_OFFSET_BYTES - 2 * MAX_NAME_BYTES - MAC_BYTES - 3
"""How long one message may be: what is left beside the header, the MAC and the length of the list."""
MAX_MESSAGES_PER_FRAME = 4096
"""How many messages a frame may hold."""

_EXT_VALUE, _EXT_UNREADABLE = 1, 2  # msgpack extension types
_MSGPACK_FIXARRAY, _MSGPACK_ARRAY16 = 0x90, 0xDC  # how a msgpack list of up to 15, and of up to 65,535 begins


class BadFrame(MstarError):
    """Bytes that are no frame of this deployment, or a frame that does not hold messages."""


class UnreadableValue:
    """What a `Value` holds when it could not be packed or unpacked. The request it belongs to cannot go on."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Unreadable({self.text!r})"


class ValueCodec(Protocol):
    """How values travel: in the frame itself, or beside it with only their whereabouts in the frame."""

    def pack(self, value: Any, to: Peer) -> bytes:
        """A value as bytes that `to` can read."""
        ...

    def unpack(self, data: bytes | memoryview, sender: Peer, *, may_wait: bool = False) -> Any:
        """The value that `sender` packed.

        Raises NotHere, and has taken nothing, if it would have to wait for another host, unless it may: then it is
        called in a thread of its own, also while another thread calls anything else.
        """
        ...

    def forget(self, peer: Peer) -> None:
        """That life is over: free what is kept for it."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class Frame(NamedTuple):
    """One frame, opened. Number 0 and no payload: it only says how far its sender has heard."""

    peers: bytes
    """Its sender and its receiver, as `write_ends` gives them: the same bytes in every frame between the two."""
    number: int
    ack: int
    payload: bytes | memoryview


def encode_peers(sender: Peer, receiver: Peer) -> bytes:
    """Who speaks to whom, as bytes."""
    origin, goal = sender.name.encode(), receiver.name.encode()
    return _PEERS_HEADER.pack(len(origin), len(goal), sender.incarnation, receiver.incarnation) + origin + goal


def decode_peers(encoded_peers: bytes) -> tuple[Peer, Peer]:
    """Sender and receiver."""
    origin, _, sender, receiver = _PEERS_HEADER.unpack_from(encoded_peers)
    split = _PEERS_HEADER.size + origin
    try:
        return Peer(str(encoded_peers[_PEERS_HEADER.size : split], "utf-8"), sender), Peer(
            str(encoded_peers[split:], "utf-8"), receiver
        )
    except UnicodeDecodeError as error:
        raise BadFrame(f"a frame has a name that is no text: {error}\n  fix: use names in UTF-8") from None


class FrameSigner:
    """Closes and opens frames with the key of a deployment."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            fix = f"make one with secrets.token_bytes({KEY_BYTES}) and give it to every process"
            raise MstarError(f"the key has {len(key)} bytes, not {KEY_BYTES}\n  fix: {fix}")
        self._keyed_hash = blake2b(key=key, digest_size=MAC_BYTES)  # copied per frame: cheaper than a new one

    def _mac(self, data: bytes | memoryview) -> bytes:
        keyed = self._keyed_hash.copy()
        keyed.update(data)
        return keyed.digest()

    def sign(self, frame: Frame) -> bytes:
        """The frame as bytes."""
        ends, number, ack, payload = frame
        data = b"".join((_HEADER.pack(VERSION, number, ack), ends, payload))
        return data + self._mac(data)

    def verify(self, data: bytes) -> Frame:
        """The frame that these bytes are; raises BadFrame if they are not one of this deployment."""
        if not _NAMES_OFFSET_BYTES + MAC_BYTES < len(data) <= MAX_FRAME_BYTES:
            raise BadFrame(f"{len(data)} bytes cannot be a frame\n  fix: find out who else writes to this address")
        view = memoryview(data)
        if not compare_digest(self._mac(view[:-MAC_BYTES]), view[-MAC_BYTES:]):
            raise BadFrame("a frame has a wrong MAC\n  fix: start all processes of a deployment with one key")
        version, number, ack = _HEADER.unpack_from(data)
        origin, goal = data[_HEADER.size], data[_HEADER.size + 1]
        end = _NAMES_OFFSET_BYTES + origin + goal
        if version != VERSION or not (
            0 < origin <= MAX_NAME_BYTES and 0 < goal <= MAX_NAME_BYTES and end <= len(data) - MAC_BYTES
        ):
            raise BadFrame(
                f"a frame of version {version} is not understood\n  fix: run one version of mstar everywhere"
            )
        return Frame(data[_HEADER.size : end], number, ack, view[end:-MAC_BYTES])


def pack_payloads(messages: list[bytes]) -> list[bytes]:
    """Encoded messages as payloads, in order: one payload, or several if one frame cannot hold them all."""
    if len(messages) <= MAX_MESSAGES_PER_FRAME and sum(map(len, messages)) <= MAX_MESSAGE_BYTES:
        return [_encode_list(messages)]
    payloads: list[bytes] = []
    start, size = 0, 0
    for end, message in enumerate(messages):
        if size + len(message) > MAX_MESSAGE_BYTES or end - start == MAX_MESSAGES_PER_FRAME:
            payloads.append(_encode_list(messages[start:end]))
            start, size = end, 0
        size += len(message)
    return [*payloads, _encode_list(messages[start:])]


def _encode_list(messages: list[bytes]) -> bytes:
    count = len(messages)
    begin = bytes((_MSGPACK_FIXARRAY | count,)) if count < 16 else struct.pack(">BH", _MSGPACK_ARRAY16, count)
    return begin + b"".join(messages)


class MessageCodec:
    """Turns messages into bytes and back, with the process's codec for the values in them.

    One that `may_wait` waits for values on other hosts; the others raise NotHere when they decode such a payload.
    """

    def __init__(self, codec: ValueCodec, *, may_wait: bool = False) -> None:
        self._codec = codec
        self._may_wait = may_wait
        self._unpack_value = partial(codec.unpack, may_wait=True) if may_wait else codec.unpack
        self._remote = Peer("", 0)  # whom the message that is in the works is for, or from
        self._is_too_long = False
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._pack)
        self._decoder = msgspec.msgpack.Decoder(list[AnyMessage], ext_hook=self._unpack)

    def encode(self, message: Message, to: Peer) -> bytes:
        """One message as bytes. A value that cannot be packed, or is too long, arrives as Unreadable."""
        self._remote = to
        data = self._encoder.encode(message)
        if len(data) > MAX_MESSAGE_BYTES:
            self._is_too_long = True
            data = self._encoder.encode(message)
            self._is_too_long = False
        return data

    def decode(self, payload: bytes | memoryview, sender: Peer) -> list[AnyMessage]:
        """The messages of a payload; raises BadFrame if it holds anything else."""
        self._remote = sender
        try:
            messages = self._decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            fix = "run one version of mstar everywhere"
            raise BadFrame(f"a frame from {sender} does not hold messages: {error}\n  fix: {fix}") from None
        if not 0 < len(messages) <= MAX_MESSAGES_PER_FRAME:
            fix = f"send 1 to {MAX_MESSAGES_PER_FRAME}"
            raise BadFrame(f"a frame from {sender} holds {len(messages)} messages\n  fix: {fix}")
        return messages

    def _pack(self, value: Any) -> msgspec.msgpack.Ext:
        if not isinstance(value, Value):
            raise TypeError(f"a message holds a {type(value).__name__}\n  fix: wrap it in a Value")
        try:
            if self._is_too_long:
                raise BadFrame(
                    f"it is longer than {MAX_MESSAGE_BYTES} bytes\n  fix: make it smaller or send it in parts"
                )
            return msgspec.msgpack.Ext(_EXT_VALUE, self._codec.pack(value.content, self._remote))
        except Exception as error:  # noqa: BLE001 - one value that cannot travel fails one request
            text = f"a {type(value.content).__name__} could not be sent to {self._remote}: {error}"
            return msgspec.msgpack.Ext(_EXT_UNREADABLE, text.encode())

    def _unpack(self, kind: int, data: memoryview) -> Value:
        if kind == _EXT_UNREADABLE:
            return Value(UnreadableValue(str(data, "utf-8", "replace")))
        try:
            return Value(self._unpack_value(data, self._remote))
        except Exception as error:
            if isinstance(error, WouldBlock) and not self._may_wait:
                raise
            return Value(UnreadableValue(f"a value from {self._remote} could not be read: {error}"))
