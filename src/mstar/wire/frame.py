"""Wire format: framing, message authentication (MAC) and msgpack encoding of messages.

    version, sequence number, ack | peers: name lengths, incarnations, names | payload | MAC

The payload is a msgpack list of messages. A `Value` inside it is encoded by the codec of the process (`ValueCodec`).
The MAC is a keyed BLAKE2b hash: a process without the deployment's key can neither forge nor change a frame.

Not here: ordering, duplicates and resends (`link`), and frames of dead incarnations (`transport.channels`).
"""

from __future__ import annotations

import struct
from functools import partial
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, Protocol

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
_NAMES_OFFSET_BYTES = _HEADER.size + _PEERS_HEADER.size  # offset of the names
MAX_MESSAGE_BYTES = MAX_FRAME_BYTES - _NAMES_OFFSET_BYTES - 2 * MAX_NAME_BYTES - MAC_BYTES - 3
"""Maximum size of one encoded message: a frame minus its header, MAC and list length."""
MAX_MESSAGES_PER_FRAME = 4096
"""Maximum number of messages in one frame."""

_EXT_VALUE = 1  # msgpack extension type
_EXT_UNREADABLE = 2  # msgpack extension type
_MSGPACK_FIXARRAY = 0x90  # list of up to 15 items
_MSGPACK_ARRAY16 = 0xDC  # list of up to 65,535 items
_ONE_MESSAGE = bytes((_MSGPACK_FIXARRAY | 1,))


class BadFrame(MstarError):
    """The bytes are not a frame of this deployment, or the payload does not decode to messages."""


class UnreadableValue:
    """Content of a `Value` that could not be packed or unpacked. Its request cannot continue."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"UnreadableValue({self.text!r})"


class ValueCodec(Protocol):
    """Serializer for values: inline in the frame, or out of band with a descriptor in the frame."""

    def pack(self, value: Any, to: Peer) -> bytes:
        """Encode a value for the peer `to`."""
        ...

    def unpack(self, data: bytes | memoryview, sender: Peer, *, may_wait: bool = False) -> Any:
        """Decode a value that `sender` packed.

        Raises WouldBlock, without side effects, if the bytes are on another host and `may_wait` is False. With
        `may_wait` it blocks, and is called from a separate thread, concurrently with all other methods.
        """
        ...

    def forget(self, peer: Peer) -> None:
        """Free everything kept for a dead peer."""
        ...

    def close(self) -> None:
        """Free all resources."""
        ...


class Frame(msgspec.Struct, frozen=True):  # cheaper to create than a NamedTuple: there are two for each frame
    """A decoded frame. Number 0 without a payload is a pure acknowledgement."""

    peers: bytes
    """Sender and receiver, as encoded by `encode_peers`: identical in every frame between the two."""
    number: int
    ack: int
    payload: bytes | memoryview


def encode_peers(sender: Peer, receiver: Peer) -> bytes:
    """Encode sender and receiver."""
    origin, target = sender.name.encode(), receiver.name.encode()
    return _PEERS_HEADER.pack(len(origin), len(target), sender.incarnation, receiver.incarnation) + origin + target


def decode_peers(encoded_peers: bytes) -> tuple[Peer, Peer]:
    """Decode sender and receiver. Raises BadFrame."""
    origin, _, sender, receiver = _PEERS_HEADER.unpack_from(encoded_peers)
    split = _PEERS_HEADER.size + origin
    try:
        return Peer(str(encoded_peers[_PEERS_HEADER.size : split], "utf-8"), sender), Peer(
            str(encoded_peers[split:], "utf-8"), receiver
        )
    except UnicodeDecodeError as error:
        raise BadFrame(f"the peer name in a frame is not UTF-8: {error}\n  fix: use UTF-8 names") from None


class FrameSigner:
    """Signs and verifies frames with the key of the deployment."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            fix = f"generate it with secrets.token_bytes({KEY_BYTES}) and pass it to every process"
            raise MstarError(f"the deployment key has {len(key)} bytes, required are {KEY_BYTES}\n  fix: {fix}")
        self._keyed_hash = blake2b(key=key, digest_size=MAC_BYTES)  # copied per frame: cheaper than keying a new hash

    def _mac(self, data: bytes | memoryview) -> bytes:
        keyed = self._keyed_hash.copy()
        keyed.update(data)
        return keyed.digest()

    def sign(self, frame: Frame) -> bytes:
        """Encode a frame and append its MAC."""
        data = b"".join((_HEADER.pack(VERSION, frame.number, frame.ack), frame.peers, frame.payload))
        return data + self._mac(data)

    def verify(self, data: bytes) -> Frame:
        """Check the MAC and decode the frame. Raises BadFrame."""
        if not _NAMES_OFFSET_BYTES + MAC_BYTES < len(data) <= MAX_FRAME_BYTES:
            raise BadFrame(
                f"invalid frame length of {len(data)} bytes\n  fix: find out what else sends to this address"
            )
        view = memoryview(data)
        if not compare_digest(self._mac(view[:-MAC_BYTES]), data[-MAC_BYTES:]):
            raise BadFrame("the MAC of a frame is wrong\n  fix: start all processes of a deployment with the same key")
        version, number, ack = _HEADER.unpack_from(data)
        origin, target = data[_HEADER.size], data[_HEADER.size + 1]
        end = _NAMES_OFFSET_BYTES + origin + target
        if version != VERSION or not (
            0 < origin <= MAX_NAME_BYTES and 0 < target <= MAX_NAME_BYTES and end <= len(data) - MAC_BYTES
        ):
            raise BadFrame(
                f"frame version {version}, expected {VERSION}\n  fix: run the same version of mstar on every host"
            )
        return Frame(data[_HEADER.size : end], number, ack, view[end:-MAC_BYTES])


def pack_payloads(messages: list[bytes]) -> list[bytes]:
    """Group encoded messages into payloads, in order: one payload, or several if one frame cannot hold them all."""
    if len(messages) == 1:  # the common case; one message fits a frame
        return [_ONE_MESSAGE + messages[0]]
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
    prefix = bytes((_MSGPACK_FIXARRAY | count,)) if count < 16 else struct.pack(">BH", _MSGPACK_ARRAY16, count)
    return prefix + b"".join(messages)


class MessageCodec:
    """Encodes and decodes messages, with the value codec of the process.

    With `may_wait` decoding blocks until values on other hosts arrive; without, it raises WouldBlock.
    """

    def __init__(self, codec: ValueCodec, *, may_wait: bool = False) -> None:
        self._codec = codec
        self._may_wait = may_wait
        self._unpack_value = partial(codec.unpack, may_wait=True) if may_wait else codec.unpack
        self._remote = Peer("", 0)  # peer of the message that is encoded or decoded now
        self._is_too_long = False
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._pack)
        self._decoder = msgspec.msgpack.Decoder(list[AnyMessage], ext_hook=self._unpack)

    def encode(self, message: Message, to: Peer) -> bytes:
        """Encode a message. A value that is too long or not serializable arrives as `UnreadableValue`."""
        self._remote = to
        data = self._encoder.encode(message)
        if len(data) > MAX_MESSAGE_BYTES:
            self._is_too_long = True
            data = self._encoder.encode(message)
            self._is_too_long = False
        return data

    def decode(self, payload: bytes | memoryview, sender: Peer) -> list[AnyMessage]:
        """Decode the messages of a payload. Raises BadFrame, and WouldBlock unless `may_wait`."""
        self._remote = sender
        try:
            messages = self._decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            fix = "run the same version of mstar on every host"
            raise BadFrame(f"a frame from {sender} does not decode to messages: {error}\n  fix: {fix}") from None
        if not 0 < len(messages) <= MAX_MESSAGES_PER_FRAME:
            fix = f"send 1 to {MAX_MESSAGES_PER_FRAME} messages in a frame"
            raise BadFrame(f"a frame from {sender} holds {len(messages)} messages\n  fix: {fix}")
        return messages

    def _pack(self, value: Any) -> msgspec.msgpack.Ext:
        if not isinstance(value, Value):
            raise TypeError(
                f"a message field has the unsupported type {type(value).__name__}\n  fix: wrap it in a Value"
            )
        try:
            if self._is_too_long:
                raise BadFrame(f"larger than {MAX_MESSAGE_BYTES} bytes\n  fix: make it smaller or send it in parts")
            return msgspec.msgpack.Ext(_EXT_VALUE, self._codec.pack(value.content, self._remote))
        except Exception as error:  # noqa: BLE001 - one bad value fails one request only
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
