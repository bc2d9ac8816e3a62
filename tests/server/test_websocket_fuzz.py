"""Fuzzing of the WebSocket endpoints with random and almost valid messages: errors, no crash, no leak."""

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
"""Seconds without a message after which a session has answered everything."""
FEW = settings(max_examples=20, **QUIET)
MANY = settings(max_examples=250, **QUIET)

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
    """One of the messages, with fields changed, removed or added."""
    message = json.loads(json.dumps(draw(st.sampled_from(messages))))
    for _ in range(draw(st.integers(0, 2))):
        target = message
        while True:
            key = draw(st.sampled_from([*target]) if target else st.text(max_size=8))
            if isinstance(target.get(key), dict) and draw(st.booleans()):
                target = target[key]
                continue
            if draw(st.integers(0, 3)):
                target[key] = draw(VALUES)
            else:
                target.pop(key, None)
            break
    return json.dumps(message)


@st.composite
def observations(draw):
    """A packed observation with changed fields and bytes."""
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
    """Send all messages; return the close code of the server, None if it kept the connection open."""
    caplog.clear()
    with (
        caplog.at_level(logging.WARNING),
        connect(model_server.url.replace("http", "ws") + path, max_size=None) as socket,
    ):
        try:
            for message in messages:
                socket.send(message)
            while True:
                socket.recv(SILENCE_S)
        except ConnectionClosed as closed:
            close_code = closed.rcvd.code if closed.rcvd else 1006
        except TimeoutError:
            close_code = None
    assert model_server.wait_until_idle(2)
    assert not [record.getMessage() for record in caplog.records]
    return close_code


def realtime(model_server, messages, caplog):
    assert send_all(model_server, "/v1/realtime?model=friend", messages, caplog) is None


def stream(model_server, messages, caplog):
    assert send_all(model_server, "/v1/audio/speech/stream", messages, caplog) in (None, 1000, 1008)


def robots(model_server, messages, caplog):
    assert send_all(model_server, "/", messages, caplog) in (None, 1011)  # like openpi's own servers


ENDPOINT_CASES = pytest.mark.parametrize(
    ("run_session", "messages"),
    [
        (realtime, message_lists(EVENTS)),
        (stream, message_lists(SPEECH_EVENTS)),
        (robots, st.lists(observations() | st.binary(max_size=50) | st.text(max_size=9), max_size=3)),
    ],
)


@ENDPOINT_CASES
def test_no_message_breaks_a_websocket(model_server, run_session, messages, caplog):
    FEW(given(st.data())(lambda data: run_session(model_server, data.draw(messages), caplog)))()


@pytest.mark.nightly
@ENDPOINT_CASES
def test_no_message_breaks_a_websocket_many_examples(model_server, run_session, messages, caplog):
    MANY(given(st.data())(lambda data: run_session(model_server, data.draw(messages), caplog)))()


def test_deep_and_huge_messages_are_rejected(model_server, caplog):
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
