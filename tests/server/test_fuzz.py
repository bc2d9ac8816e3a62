"""What strangers say over WebSockets, at random and nearly right: told what is wrong, and nothing breaks or stays."""

import json
import logging
import struct
from base64 import b64encode

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from mstar.server import openpi
from tests.server.sounding import Talker as Voice
from tests.server.toys_house import housing
from tests.server.toys_robot import Arm, observation
from tests.server.toys_talk import Talker as Friend

QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture], "derandomize": True}
SILENCE_S = 0.03
"""After so long a call has answered to all it was told."""
FEW, MANY = settings(max_examples=20, **QUIET), settings(max_examples=250, **QUIET)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["", "inf", "auto", "item_1", "root", "text", "audio", "\x00", "ﷺ" * 50, 2**63, -(2**70), 1e308, [], {}]
    )
)
VALUES = st.recursive(
    SCALARS, lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(max_size=8), some, max_size=4)
)
SOUND = b64encode(np.zeros(4800, np.int16).tobytes()).decode()
NOISE = b64encode((np.random.default_rng(0).uniform(-1, 1, 14_400) * 20_000).astype(np.int16).tobytes()).decode()
ITEM = {"id": "item_1", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
EVENTS = [
    {"type": "session.update", "session": {"type": "realtime", "output_modalities": ["text"], "instructions": "x"}},
    {
        "type": "session.update",
        "session": {"audio": {"input": {"turn_detection": None, "transcription": {"model": "friend"}}}},
    },
    {
        "type": "session.update",
        "session": {"tools": [{"type": "function", "name": "f", "parameters": {}}], "max_output_tokens": 3},
    },
    {"type": "input_audio_buffer.append", "audio": SOUND},
    {"type": "input_audio_buffer.append", "audio": NOISE},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "conversation.item.create", "item": ITEM, "previous_item_id": "root"},
    {
        "type": "conversation.item.create",
        "item": ITEM | {"id": "item_2", "content": [{"type": "input_audio", "audio": SOUND}]},
    },
    {"type": "conversation.item.create", "item": {"type": "function_call_output", "call_id": "c", "output": "x"}},
    {"type": "conversation.item.retrieve", "item_id": "item_1"},
    {"type": "conversation.item.truncate", "item_id": "item_1", "content_index": 0, "audio_end_ms": 100},
    {"type": "conversation.item.delete", "item_id": "item_1"},
    {"type": "response.create", "response": {"output_modalities": ["audio"], "max_output_tokens": 5}},
    {"type": "response.cancel", "event_id": "e1"},
]
SPOKEN = [
    {"type": "session.config", "model": "voice", "response_format": "pcm", "sample_rate": 24000, "speed": 1.0},
    {"type": "input.text", "text": "One. Two! "},
    {"type": "input.text", "text": "three"},
    {"type": "input.cancel"},
    {"type": "input.done"},
]
SEEN = {"prompt": "pick", **observation()}


@st.composite
def mutated(draw, messages):
    """One of these, with something in it exchanged, left out or added."""
    message = json.loads(json.dumps(draw(st.sampled_from(messages))))
    for _ in range(draw(st.integers(0, 2))):
        place = message
        while True:
            key = draw(st.sampled_from([*place]) if place else st.text(max_size=8))
            if isinstance(place.get(key), dict) and draw(st.booleans()):
                place = place[key]
                continue
            if draw(st.integers(0, 3)):
                place[key] = draw(VALUES)
            else:
                place.pop(key, None)
            break
    return json.dumps(message)


@st.composite
def observed(draw):
    """What a robot sees, and some of its bytes exchanged."""
    fields = dict(SEEN)
    if draw(st.booleans()):
        name = draw(st.sampled_from([*fields, "more"]))
        fields[name] = draw(
            VALUES | st.sampled_from([np.float32(1), np.zeros((2, 2)), np.full(32, np.nan, "f4"), b"x"])
        )
    try:
        packed = bytearray(openpi.pack(fields))
    except (TypeError, OverflowError, ValueError):
        return b"\x80"
    for _ in range(draw(st.integers(0, 3))):
        packed[draw(st.integers(0, min(len(packed) - 1, 200)))] = draw(st.integers(0, 255))
    return bytes(packed[: draw(st.sampled_from([len(packed), len(packed) // 2, 3]))])


def said(messages):
    return st.lists(
        mutated(messages) | VALUES.map(json.dumps) | st.text(max_size=50) | st.binary(max_size=50), max_size=8
    )


@pytest.fixture(scope="module")
def house():
    with housing({"friend": Friend(), "voice": Voice(), "arm": Arm()}) as started:
        yield started


def speak(house, path, messages, caplog):
    """Say all this; how the server ended the call, if it did."""
    caplog.clear()
    with caplog.at_level(logging.WARNING), connect(house.url.replace("http", "ws") + path, max_size=None) as call:
        try:
            for message in messages:
                call.send(message)
            while True:
                call.recv(SILENCE_S)
        except ConnectionClosed as closed:
            ended = closed.rcvd.code if closed.rcvd else 1006
        except TimeoutError:
            ended = None
    assert house.is_left(2)
    assert not [record.getMessage() for record in caplog.records]
    return ended


def realtime(house, messages, caplog):
    assert speak(house, "/v1/realtime?model=friend", messages, caplog) is None


def stream(house, messages, caplog):
    assert speak(house, "/v1/audio/speech/stream", messages, caplog) in (None, 1000, 1008)


def robots(house, messages, caplog):
    assert speak(house, "/", messages, caplog) in (None, 1011)  # as openpi's own servers end a call


LINES = pytest.mark.parametrize(
    ("hold", "messages"),
    [
        (realtime, said(EVENTS)),
        (stream, said(SPOKEN)),
        (robots, st.lists(observed() | st.binary(max_size=50) | st.text(max_size=9), max_size=3)),
    ],
)


@LINES
def test_nothing_that_is_said_breaks_a_call(house, hold, messages, caplog):
    FEW(given(st.data())(lambda data: hold(house, data.draw(messages), caplog)))()


@pytest.mark.slow
@LINES
def test_nothing_that_is_said_breaks_a_call_and_much_is_said(house, hold, messages, caplog):
    MANY(given(st.data())(lambda data: hold(house, data.draw(messages), caplog)))()


def test_deep_and_huge_messages_are_only_refused(house, caplog):
    deep = [
        "[" * 100_000,
        '{"type":' * 10_000,
        json.dumps({"type": "session.update", "session": {"x": "y" * (1 << 20)}}),
    ]
    deep += [
        '{"type":"session.update","session":' + '{"audio":' * 900 + "1" + "}" * 901,
        '{"type": ' + "9" * 5000 + "}",
    ]
    assert speak(house, "/v1/realtime?model=friend", deep, caplog) is None
    for one in deep:
        assert speak(house, "/v1/audio/speech/stream", [one], caplog) in (None, 1008)
    for one in (b"\x81" * 10_000, b"\x91" * 10_000, b"\xdf" + struct.pack(">I", 2**32 - 1), b"\xdd\xff\xff\xff\xff"):
        assert speak(house, "/", [one], caplog) in (None, 1011)
