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

from mstar.server.robotics import openpi
from tests.server.model_server import serve_models
from tests.server.toy_robot_models import Arm, observation
from tests.server.toy_speech_models import ToneSpeaker as Voice
from tests.server.toy_voice_model import Talker as Friend

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
SPEECH_EVENTS = [
    {"type": "session.config", "model": "voice", "response_format": "pcm", "sample_rate": 24000, "speed": 1.0},
    {"type": "input.text", "text": "One. Two! "},
    {"type": "input.text", "text": "three"},
    {"type": "input.cancel"},
    {"type": "input.done"},
]
OBSERVATION = {"prompt": "pick", **observation()}


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
    fields = dict(OBSERVATION)
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


def message_lists(messages):
    return st.lists(
        mutated(messages) | VALUES.map(json.dumps) | st.text(max_size=50) | st.binary(max_size=50), max_size=8
    )


@pytest.fixture(scope="module")
def model_server():
    with serve_models({"friend": Friend(), "voice": Voice(), "arm": Arm()}) as started:
        yield started


def send_all(model_server, path, messages, caplog):
    """Say all this; how the server ended the call, if it did."""
    caplog.clear()
    with (
        caplog.at_level(logging.WARNING),
        connect(model_server.url.replace("http", "ws") + path, max_size=None) as call,
    ):
        try:
            for message in messages:
                call.send(message)
            while True:
                call.recv(SILENCE_S)
        except ConnectionClosed as closed:
            ended = closed.rcvd.code if closed.rcvd else 1006
        except TimeoutError:
            ended = None
    assert model_server.wait_until_idle(2)
    assert not [record.getMessage() for record in caplog.records]
    return ended


def realtime(model_server, messages, caplog):
    assert send_all(model_server, "/v1/realtime?model=friend", messages, caplog) is None


def stream(model_server, messages, caplog):
    assert send_all(model_server, "/v1/audio/speech/stream", messages, caplog) in (None, 1000, 1008)


def robots(model_server, messages, caplog):
    assert send_all(model_server, "/", messages, caplog) in (None, 1011)  # as openpi's own servers end a call


ENDPOINT_CASES = pytest.mark.parametrize(
    ("hold", "messages"),
    [
        (realtime, message_lists(EVENTS)),
        (stream, message_lists(SPEECH_EVENTS)),
        (robots, st.lists(observed() | st.binary(max_size=50) | st.text(max_size=9), max_size=3)),
    ],
)


@ENDPOINT_CASES
def test_no_message_breaks_a_websocket(model_server, hold, messages, caplog):
    FEW(given(st.data())(lambda data: hold(model_server, data.draw(messages), caplog)))()


@pytest.mark.slow
@ENDPOINT_CASES
def test_no_message_of_many_breaks_a_websocket(model_server, hold, messages, caplog):
    MANY(given(st.data())(lambda data: hold(model_server, data.draw(messages), caplog)))()


def test_deep_and_huge_messages_are_only_refused(model_server, caplog):
    deep = [
        "[" * 100_000,
        '{"type":' * 10_000,
        json.dumps({"type": "session.update", "session": {"x": "y" * (1 << 20)}}),
    ]
    deep += [
        '{"type":"session.update","session":' + '{"audio":' * 900 + "1" + "}" * 901,
        '{"type": ' + "9" * 5000 + "}",
    ]
    assert send_all(model_server, "/v1/realtime?model=friend", deep, caplog) is None
    for one in deep:
        assert send_all(model_server, "/v1/audio/speech/stream", [one], caplog) in (None, 1008)
    for one in (b"\x81" * 10_000, b"\x91" * 10_000, b"\xdf" + struct.pack(">I", 2**32 - 1), b"\xdd\xff\xff\xff\xff"):
        assert send_all(model_server, "/", [one], caplog) in (None, 1011)
