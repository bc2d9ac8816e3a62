"""Frames: round trips of all messages, MAC verification, limits, and fuzzing of invalid frames."""

import random

import msgspec
import pytest

from mstar.errors import MstarError
from mstar.plan.runtime.messages import stream_item
from mstar.wire import frame as frames
from mstar.wire.activity import OpActivity, RequestPosition, RequestStatus, StreamFill, TransferCount, WorkerActivity
from mstar.wire.frame import (
    BadFrame,
    Frame,
    FrameSigner,
    MessageCodec,
    UnreadableValue,
    decode_peers,
    encode_peers,
    pack_payloads,
)
from mstar.wire.messages import (
    ActivityQuery,
    ActivityReply,
    Cancel,
    ClientInput,
    DataBatch,
    DeploymentReport,
    Emit,
    Heartbeat,
    InputAccepted,
    LocalState,
    ModelStatusReply,
    NewState,
    Peer,
    ProcessExited,
    Ready,
    Register,
    RolloutFailed,
    SeatDone,
    SpansQuery,
    SpansReply,
    StartWalk,
    StartWorker,
    StatsReply,
    StillComputing,
    Submit,
    Suspect,
    TurnFinished,
    UnloadModel,
    Value,
    ValueInput,
)
from mstar.wire.stats import DeadlineStats, MetricFamily, OpTotals, Span, StreamDemand, WalkStats, WorkerLoad
from tests.wire.actors import KEY, MsgpackCodec

WORKER, FRONT = Peer("worker-1", 3), Peer("front", 2**63)
PEERS = encode_peers(WORKER, FRONT)

MESSAGES = [
    DeploymentReport(b"\x00view"),
    StatsReply(7, {}, metrics=[MetricFamily("mstar_x", "Help", "counter", [("mstar_x_total", {"model": "m"}, 1.5)])]),
    StillComputing(WORKER),
    Register(("m.lm", "m.codec")),
    Register(("m.lm",), 2, {"m.lm": "cuda:0"}),
    ClientInput("r1", 2, Value([1]), {"Text": 3}),
    InputAccepted("r1", 2, 4, 2**62, {"Text": 3}),
    TurnFinished("r1", 2, {"Text": 3}, Value({"a": 1})),
    StatsReply(7, {"pages": 12, "states": 0}, [OpTotals("m", "lm", "decode", 3, {"speak": WalkStats(9, 0.5)})]),
    StatsReply(8, {}, [], [DeadlineStats("m", "Audio", 4, 1, 0.2)]),
    Heartbeat(0.5, WorkerLoad(0.4, {"m": StreamDemand(0.1, 0.05, 0.3, 0.01)})),
    SpansQuery(8, "r1"),
    SpansReply(8, 1.7e9, [Span("op", "lm.decode", "speak", 0, 2**62, 1.5, 2.5, 9, detail="é")]),
    UnloadModel(9, "m"),
    ModelStatusReply(9, {"m": "unloaded"}, "é"),
    ActivityQuery(9),
    ActivityReply(
        9, {"requests": 1}, 0.5, [OpActivity("m", "speak", 2, 1, 4, 4, 0.1, 3)], [RequestPosition("r1", 0, 2)]
    ),
    ActivityReply(9, streams=[StreamFill("m", "speak", "~words", 3, 32, 1)], transfers=[TransferCount("b", 1)]),
    ActivityReply(
        9,
        requests=[RequestStatus("r1", "m", "running", "speak", 0, 1, ("a",), 0.5)],
        workers=[WorkerActivity("a", 1, "up")],
    ),
    Submit("r1", "orpheus", Value({"text": "hello", "bytes": b"\0\1"}), tenant="t"),
    StartWalk(
        "r1",
        1,
        0,
        "m",
        "speak",
        (WORKER,),
        {0: ValueInput(Value([1, 2.5])), 1: NewState("lm", "KV")},
        {"Text": 1},
        FRONT,
    ),
    DataBatch("r1", 1, 0, [stream_item(1, 1, (2, 3), Value(None))]),
    SeatDone("r1", 1, 0, 0, {0: LocalState(4), 1: ValueInput(Value("é"))}, {0: 9}, {"Audio": 3}),
    Emit("r1", 2**62, "Audio", 5, Value(b"x" * 1000), (("rate", 24_000), ("start", 0.5))),
    ProcessExited(WORKER, "signal 9", [Suspect("r1", 1, 2)]),
    ProcessExited(WORKER, "exited with status 1", [], 6, 25.6),
    StartWorker("a", skip_backoff=True),
    RolloutFailed(2, 1, "a", "é"),
    StartWorker("a", beside=WORKER),
    Ready(),
]


def to_plain(messages):
    """Convert messages to built-in types: values do not compare."""
    return msgspec.to_builtins(messages, enc_hook=lambda value: value.content)


def sign_messages(messages, number=1, ack=0, peers=PEERS, key=KEY):
    codec = MessageCodec(MsgpackCodec())
    return FrameSigner(key).sign(
        Frame(peers, number, ack, *pack_payloads([codec.encode(message, FRONT) for message in messages]))
    )


def test_messages_round_trip():
    frame = FrameSigner(KEY).verify(sign_messages(MESSAGES, 5, 2**64 - 1))
    messages = MessageCodec(MsgpackCodec()).decode(frame.payload, WORKER)
    assert (*decode_peers(frame.peers), frame.number, frame.ack) == (WORKER, FRONT, 5, 2**64 - 1)
    assert [type(message) for message in messages] == [type(message) for message in MESSAGES]
    assert to_plain(messages) == to_plain(MESSAGES)


def test_a_frame_without_messages_is_an_acknowledgement():
    assert FrameSigner(KEY).verify(FrameSigner(KEY).sign(Frame(PEERS, 0, 9, b""))) == Frame(PEERS, 0, 9, b"")


def test_a_key_has_32_bytes():
    for key in (b"", KEY[:-1], KEY + b"x"):
        with pytest.raises(MstarError, match=rf"the deployment key has {len(key)} bytes, required are 32\n  fix: "):
            FrameSigner(key)


def test_a_frame_of_another_key_is_rejected():
    with pytest.raises(BadFrame, match="the MAC of a frame is wrong"):
        FrameSigner(KEY).verify(sign_messages(MESSAGES, key=b"k" * 32))


def test_a_frame_of_another_version_is_rejected(monkeypatch):
    monkeypatch.setattr(frames, "VERSION", 2)
    data = sign_messages(MESSAGES)
    monkeypatch.undo()
    with pytest.raises(BadFrame, match="frame version 2, expected 1"):
        FrameSigner(KEY).verify(data)


class FailingCodec(MsgpackCodec):
    """Codec that only supports strings, and fails to read one of them."""

    def pack(self, value, to):
        if not isinstance(value, str):
            raise TypeError(f"unsupported type {type(value).__name__}")
        return value.encode()

    def unpack(self, data, sender):
        if bytes(data) == b"gone":
            raise OSError("the segment is gone")
        return str(data, "utf-8")


def test_an_unserializable_value_affects_only_itself():
    codec = MessageCodec(FailingCodec())
    sent = [Submit(f"r{n}", "m", Value(content)) for n, content in enumerate(["good", object(), "gone", "fine"])]
    (payload,) = pack_payloads([codec.encode(message, FRONT) for message in sent])
    contents = [message.request.content for message in codec.decode(payload, WORKER)]
    assert [contents[0], contents[3]] == ["good", "fine"]
    assert isinstance(contents[1], UnreadableValue)
    assert contents[1].text == f"a object could not be sent to {FRONT}: unsupported type object"
    assert isinstance(contents[2], UnreadableValue)
    assert contents[2].text == f"a value from {WORKER} could not be read: the segment is gone"


def test_a_message_that_is_too_long_arrives_without_its_values(monkeypatch):
    monkeypatch.setattr(frames, "MAX_MESSAGE_BYTES", 1000)
    codec = MessageCodec(MsgpackCodec())
    long, short = (Submit("r", "m", Value("x" * size)) for size in (1000, 900))
    (payload,) = pack_payloads([codec.encode(long, FRONT)])
    (message,) = codec.decode(payload, WORKER)
    assert "larger than 1000 bytes" in message.request.content.text
    assert b"x" * 900 in codec.encode(short, FRONT)


@pytest.mark.parametrize(
    ("count", "size", "frames_needed"), [(1, 3, 1), (15, 3, 1), (16, 3, 1), (5000, 3, 2), (9, 400, 5)]
)
def test_messages_beyond_the_frame_limit_are_split(monkeypatch, count, size, frames_needed):
    monkeypatch.setattr(frames, "MAX_MESSAGE_BYTES", 1000 if size == 400 else 100_000)
    codec = MessageCodec(MsgpackCodec())
    rids = [f"{n:0{size}}" for n in range(count)]
    payloads = pack_payloads([codec.encode(Cancel(rid), FRONT) for rid in rids])
    assert len(payloads) == frames_needed
    assert [message.rid for payload in payloads for message in codec.decode(payload, WORKER)] == rids


def mutated(random, good):
    """Mutate a frame: flipped bits, truncation, extension, splicing, or a MAC or header of another frame."""
    one, other = random.choice(good), random.choice(good)
    at, size = random.randrange(len(one)), random.randrange(1, 40)
    match random.randrange(6):
        case 0:
            return one[:at] + bytes((one[at] ^ 1 << random.randrange(8),)) + one[at + 1 :]
        case 1:
            return one[:at]
        case 2:
            return one + random.randbytes(size)
        case 3:
            return one[:at] + other[random.randrange(len(other)) :]
        case 4:
            return one[: len(one) - 16] + other[-16:]
        case _:
            return other[: 17 + size] + one[17 + size :]


def fuzz(seed, count):
    """Number of mutated frames that were accepted."""
    rng = random.Random(seed)
    signer = FrameSigner(KEY)
    peers = [PEERS, encode_peers(FRONT, WORKER), encode_peers(Peer("worker-1", 4), FRONT)]
    good = [sign_messages(MESSAGES[: n % 9 + 1], n, n // 2, peers[n % 3]) for n in range(30)]
    tried = accepted = 0
    while tried < count:
        frame = mutated(rng, good)
        if frame in good:
            continue
        tried += 1
        try:
            signer.verify(frame)
            accepted += 1
        except BadFrame:
            pass
    return accepted


def test_no_mutated_frame_is_accepted():
    assert fuzz(1, 20_000) == 0


@pytest.mark.nightly
def test_no_mutated_frame_of_very_many_is_accepted():
    assert fuzz(2, 400_000) == 0


def count_rejected(seed, count):
    """Number of frames with a valid MAC and invalid content that are rejected as BadFrame."""
    rng = random.Random(seed)
    signer, codec = FrameSigner(KEY), MessageCodec(MsgpackCodec())
    good = [sign_messages(MESSAGES[: n % 9 + 1], n) for n in range(30)]
    rejected = 0
    for _ in range(count):
        data = mutated(rng, good)[:-16]
        try:
            frame = signer.verify(data + signer._mac(data))
            decode_peers(frame.peers)
            codec.decode(frame.payload, WORKER)
        except BadFrame:
            rejected += 1
    return rejected


def test_a_broken_sender_raises_nothing_but_bad_frame():
    assert count_rejected(3, 10_000) > 3_000


@pytest.mark.nightly
def test_many_broken_senders_raise_nothing_but_bad_frame():
    assert count_rejected(4, 200_000) > 60_000


def test_a_deeply_nested_payload_is_rejected():
    for payload in (
        b"\x91" * 100_000,
        b"\x91\x94\xa6Submit\xa1r\xa1m" + b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x90",
    ):
        with pytest.raises(BadFrame):
            MessageCodec(MsgpackCodec()).decode(payload, WORKER)
