"""Tests of the Realtime API with the OpenAI SDK: responses, turn detection, barge-in, truncation, multi-turn models."""

import base64
import itertools
import json
from contextlib import contextmanager

import numpy as np
import pytest
from openai import OpenAI
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from mstar.media.g711 import decode_g711, encode_g711
from mstar.media.vad import EnergyVad
from mstar.requests import AudioInput, Message
from mstar.server.errors import ApiError
from mstar.server.inputs.memory_budget import MemoryBudget, Reservation
from mstar.server.realtime.conversation import Conversation, Item
from tests.machine_share import TimeLimit
from tests.server.model_server import serve_models
from tests.server.toy_multi_turn_model import MultiTurnTalker
from tests.server.toy_robot_models import Arm
from tests.server.toy_voice_model import LETTER, RATE, Talker

# The OpenAI SDK uses the deprecated call of its websockets library.
pytestmark = pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")

TEXT = {"type": "realtime", "output_modalities": ["text"], "audio": {"input": {"turn_detection": None}}}
QUIET = np.zeros(RATE, np.float32)
VOICE = (np.sin(np.arange(RATE) / RATE * 2 * np.pi * 300) / 2).astype(np.float32)


def pcm(samples):
    return (samples * 32767).astype("<i2").tobytes()


def to_base64_pcm(samples):
    return base64.b64encode(pcm(samples)).decode()


@pytest.fixture(scope="module")
def model_server():
    with serve_models({"talker": Talker(), "listener": MultiTurnTalker(), "arm": Arm()}) as started:
        yield started


@contextmanager
def open_session(model_server, model):
    """Realtime session of the OpenAI SDK."""
    client = OpenAI(
        api_key="none", base_url=f"{model_server.url}/v1", websocket_base_url=f"ws://127.0.0.1:{model_server.port}/v1"
    )
    with client, client.realtime.connect(model=model) as connection:
        created = connection.recv()
        assert (created.type, created.session.model) == ("session.created", model)
        yield connection


@pytest.fixture
def realtime_session(model_server):
    with open_session(model_server, "talker") as connection:
        yield connection


def wait_for_event(realtime_session, kind):
    """Receive events up to the first of a type; fails on an unexpected `error` event."""
    events = []
    while not events or events[-1].type != kind:
        events.append(realtime_session.recv())
        assert events[-1].type != "error" or kind == "error", events[-1]
    return events


def send_text(realtime_session, text):
    realtime_session.conversation.item.create(
        item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    )
    wait_for_event(realtime_session, "conversation.item.done")


def kinds(events):
    """Event types in order, without consecutive duplicates."""
    return [kind for kind, _ in itertools.groupby(event.type for event in events)]


# ---------------------------------------------------------------- responses
def test_a_text_response(realtime_session, model_server):
    realtime_session.session.update(session=TEXT | {"instructions": "be brief"})
    assert wait_for_event(realtime_session, "session.updated")[-1].session.output_modalities == ["text"]
    send_text(realtime_session, "hello")
    realtime_session.response.create()
    events = wait_for_event(realtime_session, "response.done")
    assert kinds(events) == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "hello"
    done = events[-1].response
    assert (done.status, done.output[0].content[0].text, done.usage.output_tokens) == ("completed", "hello", 5)
    assert model_server.models["talker"].seen[-1].messages == (
        Message("system", ("be brief",)),
        Message("user", ("hello",)),
    )


def test_an_audio_response(realtime_session):
    send_text(realtime_session, "hello")
    realtime_session.response.create()
    events = wait_for_event(realtime_session, "response.done")
    deltas = [event.delta for event in events if event.type == "response.output_audio.delta"]
    audio = b"".join(map(base64.b64decode, deltas))
    assert len(audio) == 5 * LETTER * 2
    assert np.abs(np.frombuffer(audio, "<i2")).max() > 8000
    (transcript,) = [event for event in events if event.type == "response.output_audio_transcript.done"]
    assert transcript.transcript == "hello"
    assert "response.output_audio.done" in kinds(events)
    assert not any("response.audio" in event.type or "response.text" in event.type for event in events)


def test_a_truncated_response_is_incomplete(realtime_session):
    realtime_session.session.update(session=TEXT | {"max_output_tokens": 3})
    send_text(realtime_session, "hello")
    realtime_session.response.create()
    done = wait_for_event(realtime_session, "response.done")[-1].response
    assert (done.status, done.status_details.reason) == ("incomplete", "max_output_tokens")


def test_a_failure_does_not_leak_internals(realtime_session, model_server):
    realtime_session.session.update(session=TEXT)
    send_text(realtime_session, "oh!")
    realtime_session.response.create()
    done = wait_for_event(realtime_session, "response.done")[-1].response
    assert (done.status, done.status_details.error.code) == ("failed", "model_error")
    assert "secret" not in done.model_dump_json()
    assert model_server.is_idle()


def test_a_response_can_be_cancelled(realtime_session, model_server):
    realtime_session.session.update(session=TEXT)
    send_text(realtime_session, "slow " + "x" * 500)
    realtime_session.response.create()
    wait_for_event(realtime_session, "response.output_text.delta")
    realtime_session.response.cancel()
    done = wait_for_event(realtime_session, "response.done")[-1].response
    assert (done.status, done.status_details.reason) == ("cancelled", "client_cancelled")
    assert model_server.is_idle()
    realtime_session.response.cancel()
    assert wait_for_event(realtime_session, "error")[-1].error.code == "response_cancel_not_active"


def test_a_response_can_be_cancelled_before_its_first_output(realtime_session):
    realtime_session.session.update(session=TEXT)
    send_text(realtime_session, "slow " + "x" * 500)
    realtime_session.response.create()
    realtime_session.response.cancel()
    events = wait_for_event(realtime_session, "response.done")
    assert "response.created" in kinds(events)
    assert events[-1].response.status == "cancelled"


def test_a_second_concurrent_response_is_rejected(realtime_session):
    realtime_session.session.update(session=TEXT)
    send_text(realtime_session, "slow " + "x" * 30)
    realtime_session.response.create()
    wait_for_event(realtime_session, "response.created")
    realtime_session.response.create()
    assert wait_for_event(realtime_session, "error")[-1].error.code == "conversation_already_has_active_response"
    assert wait_for_event(realtime_session, "response.done")[-1].response.status == "completed"


def test_a_tool_call_and_its_output(realtime_session, model_server):
    tool = {"type": "function", "name": "forecast", "parameters": {"type": "object"}}
    realtime_session.session.update(session=TEXT | {"tools": [tool]})
    send_text(realtime_session, "weather")
    realtime_session.response.create()
    events = wait_for_event(realtime_session, "response.done")
    (call,) = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert (call.name, call.arguments) == ("forecast", '{"x":1}')
    assert events[-1].response.output[1].call_id == call.call_id
    assert call.call_id.startswith("call_")
    realtime_session.conversation.item.create(
        item={"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    )
    realtime_session.response.create()
    assert wait_for_event(realtime_session, "response.done")[-1].response.output[0].content[0].text == "rain"
    messages = model_server.models["talker"].seen[-1].messages
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    assert messages[1].tool_calls[0].id == messages[2].tool_call_id == call.call_id


def test_a_disconnect_frees_all_request_state(model_server):
    with connect(f"ws://127.0.0.1:{model_server.port}/v1/realtime?model=talker") as realtime_session:
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "slow " + "x" * 500}]}
        realtime_session.send(json.dumps({"type": "conversation.item.create", "item": item}))
        realtime_session.send(json.dumps({"type": "response.create"}))
        while json.loads(realtime_session.recv())["type"] != "response.output_audio.delta":
            pass
    assert model_server.wait_until_idle()


# ---------------------------------------------------------------- input audio
def test_server_vad_commits_a_turn_and_starts_a_response(realtime_session, model_server):
    for part in np.split(np.concatenate([QUIET, VOICE, QUIET]), 30):
        realtime_session.input_audio_buffer.append(audio=to_base64_pcm(part))
    events = wait_for_event(realtime_session, "response.done")
    assert kinds(events)[:5] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert 650 <= events[0].audio_start_ms <= 760  # 300 ms of prefix padding
    assert 2400 <= events[1].audio_end_ms <= 2600  # after 500 ms of silence
    assert events[0].item_id == events[2].item_id
    assert events[-1].response.output[0].content[0].transcript == "heard 1.8 with 0.9 loud"
    assert isinstance(model_server.models["talker"].seen[-1].messages[0].parts[0], AudioInput)


def test_audio_committed_by_the_client(realtime_session):
    realtime_session.session.update(session=TEXT)
    realtime_session.input_audio_buffer.append(audio=to_base64_pcm(VOICE[:100]))
    realtime_session.input_audio_buffer.commit()
    assert wait_for_event(realtime_session, "error")[-1].error.code == "input_audio_buffer_commit_empty"
    realtime_session.input_audio_buffer.clear()
    realtime_session.input_audio_buffer.append(audio=to_base64_pcm(VOICE))
    realtime_session.input_audio_buffer.commit()
    realtime_session.response.create()
    assert "heard 1.0" in wait_for_event(realtime_session, "response.done")[-1].response.output[0].content[0].text


def test_a_session_update_during_speech_keeps_the_audio(realtime_session):
    realtime_session.input_audio_buffer.append(audio=to_base64_pcm(VOICE))
    wait_for_event(realtime_session, "input_audio_buffer.speech_started")
    realtime_session.session.update(session={"type": "realtime", "instructions": "be brief"})
    realtime_session.input_audio_buffer.append(audio=to_base64_pcm(QUIET))
    assert wait_for_event(realtime_session, "response.done")[-1].response.status == "completed"


def test_speech_interrupts_a_response(realtime_session, model_server):
    send_text(realtime_session, "slow " + "x" * 500)
    realtime_session.response.create()
    wait_for_event(realtime_session, "response.output_audio.delta")
    realtime_session.input_audio_buffer.append(audio=to_base64_pcm(VOICE))
    events = wait_for_event(realtime_session, "response.done")
    assert "input_audio_buffer.speech_started" in kinds(events)
    assert (events[-1].response.status, events[-1].response.status_details.reason) == ("cancelled", "turn_detected")
    assert model_server.is_idle()


def test_input_audio_is_transcribed(realtime_session):
    audio_input = {"turn_detection": None, "transcription": {"model": "talker"}}
    realtime_session.session.update(session={"type": "realtime", "audio": {"input": audio_input}})
    for model in ("talker", "unknown"):
        realtime_session.session.update(
            session={"type": "realtime", "audio": {"input": {"transcription": {"model": model}}}}
        )
        realtime_session.input_audio_buffer.append(audio=to_base64_pcm(VOICE))
        realtime_session.input_audio_buffer.commit()
        kind = "completed" if model == "talker" else "failed"
        last = wait_for_event(realtime_session, f"conversation.item.input_audio_transcription.{kind}")[-1]
        assert getattr(last, "transcript", "") == ("heard 1.0 with 0.9 loud" if model == "talker" else "")


# ---------------------------------------------------------------- telephony
@pytest.mark.parametrize(("kind", "law"), [("audio/pcmu", "ulaw"), ("audio/pcma", "alaw")])
def test_g711_in_and_out(realtime_session, model_server, kind, law):
    audio = {"input": {"format": {"type": kind}, "turn_detection": None}, "output": {"format": {"type": kind}}}
    realtime_session.session.update(session={"type": "realtime", "audio": audio})
    updated = wait_for_event(realtime_session, "session.updated")[-1].session.audio
    assert (updated.input.format.type, updated.output.format.type) == (kind, kind)
    voice = encode_g711(VOICE[::3], law)  # 300 Hz has no aliases
    for at in range(0, len(voice), 160):
        realtime_session.input_audio_buffer.append(audio=base64.b64encode(voice[at : at + 160]).decode())
    realtime_session.input_audio_buffer.commit()
    realtime_session.response.create()
    events = wait_for_event(realtime_session, "response.done")
    transcript = events[-1].response.output[0].content[0].transcript
    assert transcript.startswith("heard 1.0 with 0.9")
    audio = model_server.models["talker"].seen[-1].messages[0].parts[0]
    assert (audio.rate, len(audio.samples) / RATE) == (RATE, pytest.approx(1.0, abs=0.02))
    spoken = b"".join(base64.b64decode(one.delta) for one in events if one.type == "response.output_audio.delta")
    assert len(spoken) == pytest.approx(len(transcript) * LETTER / 3, abs=2)
    assert 0.2 < np.abs(decode_g711(spoken, law)).max() < 0.3
    item = events[-1].response.output[0].id
    realtime_session.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=6 * 20)
    wait_for_event(realtime_session, "conversation.item.truncated")
    realtime_session.conversation.item.retrieve(item_id=item)
    retrieved = wait_for_event(realtime_session, "conversation.item.retrieved")[-1].item
    assert retrieved.content[0].transcript == "heard"


# ---------------------------------------------------------------- truncation
WORDS = "one two three four five six"


def speak_response(realtime_session):
    send_text(realtime_session, WORDS)
    realtime_session.response.create()
    events = wait_for_event(realtime_session, "response.done")
    return events[-1].response.output[0].id


def test_truncated_audio_is_removed_from_the_conversation(realtime_session, model_server):
    item = speak_response(realtime_session)
    realtime_session.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=11 * 20)
    assert wait_for_event(realtime_session, "conversation.item.truncated")[-1].audio_end_ms == 220
    realtime_session.conversation.item.retrieve(item_id=item)
    assert wait_for_event(realtime_session, "conversation.item.retrieved")[-1].item.content[0].transcript == "one two"
    send_text(realtime_session, "next")
    realtime_session.response.create()
    wait_for_event(realtime_session, "response.done")
    assert model_server.models["talker"].seen[-1].messages[1] == Message("assistant", ("one two",))


def test_an_invalid_truncation_is_rejected(realtime_session):
    item = speak_response(realtime_session)
    for fields in ({"audio_end_ms": 60_000}, {"audio_end_ms": -1}, {"item_id": "nothing", "audio_end_ms": 1}):
        realtime_session.conversation.item.truncate(**{"item_id": item, "content_index": 0} | fields)
        assert wait_for_event(realtime_session, "error")[-1].error.type == "invalid_request_error"
    realtime_session.conversation.item.delete(item_id=item)
    assert wait_for_event(realtime_session, "conversation.item.deleted")[-1].item_id == item


@pytest.mark.parametrize(
    ("end_ms", "remaining"), [(0, ""), (60, "one"), (80, "one"), (100, "one"), (140, "one two"), (540, WORDS)]
)
def test_truncation_keeps_whole_words(end_ms, remaining):
    item = Item("a", "assistant", is_audio=True)
    for letter in WORDS:
        item.text += letter
        item.add_audio(bytes(20 * 48))
    item.truncate(end_ms)
    assert item.text == remaining


def test_truncation_removes_text_that_was_ahead_of_the_audio():
    item = Item("a", "assistant", is_audio=True, text="one two")
    item.add_audio(bytes(1000 * 48))
    item.text += " three four five six seven"  # generated, and cancelled before its audio was sent
    item.truncate(990)
    assert item.text == "one two"


# ---------------------------------------------------------------- multi-turn models
@pytest.fixture
def multi_turn_session(model_server):
    model_server.models["listener"].seen.clear()
    with open_session(model_server, "listener") as connection:
        yield connection, model_server.models["listener"].seen


def send_and_respond(realtime_session, text):
    send_text(realtime_session, text)
    realtime_session.response.create()
    return wait_for_event(realtime_session, "response.done")[-1].response.output[0].content[0].transcript


def test_a_multi_turn_model_gets_only_new_messages(multi_turn_session, model_server):
    realtime_session, seen = multi_turn_session
    assert [send_and_respond(realtime_session, word) for word in ("a", "b", "c")] == ["a 1", "b 3", "c 5"]
    assert [[message.parts[0] for message in chat.messages] for chat in seen] == [["a"], ["a 1", "b"], ["b 3", "c"]]


def test_a_multi_turn_model_resumes_from_the_truncated_response(multi_turn_session):
    realtime_session, seen = multi_turn_session
    send_text(realtime_session, "slow " + "x" * 500)
    realtime_session.response.create()
    wait_for_event(realtime_session, "response.output_audio.delta")
    realtime_session.response.cancel()
    events = wait_for_event(realtime_session, "response.done")
    done = events[-1].response
    assert done.status == "cancelled"
    # Counted, not timed: the model makes a chunk in 10 ms or more, so these are less than 0.5 s of 5 s.
    assert sum(event.type == "response.output_audio.delta" for event in events) < 50
    realtime_session.conversation.item.truncate(item_id=done.output[0].id, content_index=0, audio_end_ms=0)
    wait_for_event(realtime_session, "conversation.item.truncated")
    assert send_and_respond(realtime_session, "go on") == "go on 2", "the truncated text is dropped"
    assert [len(chat.messages) for chat in seen] == [1, 0, 1], "one request, with a stop input in between"


def test_changed_instructions_restart_the_request(multi_turn_session):
    realtime_session, seen = multi_turn_session
    send_and_respond(realtime_session, "a")
    realtime_session.session.update(session={"type": "realtime", "instructions": "Be brief."})
    assert send_and_respond(realtime_session, "b") == "b 4"
    assert [len(chat.messages) for chat in seen] == [1, 4]


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize(
    "message",
    [
        "no json",
        "[]",
        '{"type": "response.audio"}',
        "{}",
        '{"type": "session.update"}',
        '{"type": "session.update", "session": {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}}',
        '{"type": "session.update", "session": {"audio": {"output": {"format": {"type": "audio/opus"}}}}}',
        '{"type": "session.update", "session": {"audio": {"input": {"turn_detection": {"threshold": 7}}}}}',
        '{"type": "session.update", "session": {"max_output_tokens": 0}}',
        '{"type": "input_audio_buffer.append", "audio": "?"}',
        '{"type": "input_audio_buffer.append", "audio": "AAAA"}',
        '{"type": "input_audio_buffer.append", "audio": 7}',
        '{"type": "conversation.item.create", "item": 7}',
        '{"type": "conversation.item.create", "item": {"type": "message", "role": "king", "content": []}}',
        '{"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": [7]}}',
        '{"type": "conversation.item.create", "previous_item_id": 7, "item": {"type": "function_call_output"}}',
        '{"type": "conversation.item.delete"}',
        '{"type": "response.create", "response": {"conversation": "none"}}',
    ],
)
def test_an_invalid_event_is_reported_and_the_session_continues(model_server, message):
    with connect(f"ws://127.0.0.1:{model_server.port}/v1/realtime?model=talker") as realtime_session:
        realtime_session.recv()
        realtime_session.send(message)
        error = json.loads(realtime_session.recv())
        assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
        realtime_session.send('{"type": "input_audio_buffer.clear"}')
        assert json.loads(realtime_session.recv())["type"] == "input_audio_buffer.cleared"


@pytest.mark.parametrize("model", ["arm", "unknown"])
def test_a_model_without_chat_is_rejected_before_the_session(model_server, model):
    with pytest.raises(InvalidStatus) as raised:
        connect(f"ws://127.0.0.1:{model_server.port}/v1/realtime?model={model}")
    assert raised.value.response.status_code == 404
    assert json.loads(raised.value.response.body)["error"]["param"] == "model"


# ---------------------------------------------------------------- conversation and VAD
def test_items_are_inserted_after_the_given_item():
    conversation = Conversation(Reservation(MemoryBudget(1 << 30), ""))
    conversation.add(Item("b", "user", ["b"]))
    assert conversation.add(Item("c", "user", ["c"]), "b") == "b"
    assert conversation.add(Item("a", "user", ["a"]), "root") is None
    assert [item.id for item in conversation.items] == ["a", "b", "c"]
    with pytest.raises(ApiError, match="already exists"):
        conversation.add(Item("a", "user"))
    with pytest.raises(ApiError, match="has no item 'x'"):
        conversation.add(Item("d", "user"), "x")


def test_a_conversation_is_limited_in_size(monkeypatch):
    monkeypatch.setattr("mstar.server.realtime.conversation.MAX_CONVERSATION_BYTES", 5000)
    conversation = Conversation(Reservation(MemoryBudget(1 << 30), ""))
    conversation.add(Item("a", "user", [AudioInput(np.zeros(1000, np.float32), RATE)]))
    with pytest.raises(ApiError, match="fix: delete items"):
        conversation.add(Item("b", "user", ["x" * 1001]))


@pytest.mark.parametrize("size", [7, 480, 5000, 72_000])
def test_the_vad_does_not_depend_on_chunking(size):
    audio = pcm(np.concatenate([QUIET, VOICE, QUIET]))
    vad = EnergyVad(0.5, 500)
    edges = [edge for start in range(0, len(audio), size * 2) for edge in vad.feed(audio[start : start + size * 2])]
    assert [(edge.is_start, round(edge.at_ms, -2)) for edge in edges] == [(True, 1000), (False, 2500)]


def test_the_vad_ignores_a_click_and_a_steady_noise():
    rng, vad = np.random.default_rng(0), EnergyVad(0.5, 500)
    hum = rng.normal(0, 0.015, 4 * RATE).astype(np.float32)
    hum[RATE : RATE + 600] += 0.5
    assert vad.feed(pcm(hum)) == []
    loud = hum[:RATE] + VOICE
    assert vad.feed(pcm(loud))[0].is_start


def test_a_response_starts_promptly(realtime_session):
    realtime_session.session.update(session=TEXT)
    send_text(realtime_session, "hello")
    with TimeLimit(0.5):
        realtime_session.response.create()
        wait_for_event(realtime_session, "response.output_text.delta")
