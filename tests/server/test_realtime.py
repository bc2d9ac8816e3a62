"""A client talks with a model over a WebSocket, with the official client; what was not heard was never said."""

import base64
import json
import time
from contextlib import contextmanager

import numpy as np
import pytest
from openai import OpenAI
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from mstar.asks import Sound, Turn
from mstar.media.ears import Ears
from mstar.server.conversation import Conversation, Item
from mstar.server.refusals import Refusal
from tests.server.toys_house import housing
from tests.server.toys_listen import Listener
from tests.server.toys_robot import Arm
from tests.server.toys_talk import LETTER, RATE, Talker

# the official client calls its websockets library as it was called before
pytestmark = pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")

TEXT = {"type": "realtime", "output_modalities": ["text"], "audio": {"input": {"turn_detection": None}}}
QUIET = np.zeros(RATE, np.float32)
VOICE = (np.sin(np.arange(RATE) / RATE * 2 * np.pi * 300) / 2).astype(np.float32)


def pcm(samples):
    return (samples * 32767).astype("<i2").tobytes()


def coded(samples):
    return base64.b64encode(pcm(samples)).decode()


@pytest.fixture(scope="module")
def house():
    with housing({"talker": Talker(), "listener": Listener(), "arm": Arm()}) as started:
        yield started


@contextmanager
def calling(house, model):
    """A call of the official client."""
    client = OpenAI(api_key="none", base_url=f"{house.url}/v1", websocket_base_url=f"ws://127.0.0.1:{house.port}/v1")
    with client, client.realtime.connect(model=model) as connection:
        created = connection.recv()
        assert (created.type, created.session.model) == ("session.created", model)
        yield connection


@pytest.fixture
def call(house):
    with calling(house, "talker") as connection:
        yield connection


def until(call, kind):
    """All events up to the first of a kind."""
    events = []
    while not events or events[-1].type != kind:
        events.append(call.recv())
        assert events[-1].type != "error" or kind == "error", events[-1]
    return events


def says(call, text):
    call.conversation.item.create(
        item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    )
    until(call, "conversation.item.done")


def kinds(events):
    """The types of events, those that follow each other once."""
    found = [event.type for event in events]
    return [kind for at, kind in enumerate(found) if at == 0 or found[at - 1] != kind]


# ---------------------------------------------------------------- answers
def test_an_answer_in_text(call, house):
    call.session.update(session=TEXT | {"instructions": "be brief"})
    assert until(call, "session.updated")[-1].session.output_modalities == ["text"]
    says(call, "hello")
    call.response.create()
    events = until(call, "response.done")
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
    assert house.models["talker"].seen[-1].turns == (Turn("system", ("be brief",)), Turn("user", ("hello",)))


def test_an_answer_in_speech(call):
    says(call, "hello")
    call.response.create()
    events = until(call, "response.done")
    sound = b"".join(base64.b64decode(e.delta) for e in events if e.type == "response.output_audio.delta")
    assert len(sound) == 5 * LETTER * 2
    assert np.abs(np.frombuffer(sound, "<i2")).max() > 8000
    (whole,) = [event for event in events if event.type == "response.output_audio_transcript.done"]
    assert whole.transcript == "hello"
    assert "response.output_audio.done" in kinds(events)
    assert not any("response.audio" in event.type or "response.text" in event.type for event in events)


def test_an_answer_that_is_cut_off_says_so(call):
    call.session.update(session=TEXT | {"max_output_tokens": 3})
    says(call, "hello")
    call.response.create()
    done = until(call, "response.done")[-1].response
    assert (done.status, done.status_details.reason) == ("incomplete", "max_output_tokens")


def test_a_failure_says_so_and_nothing_of_the_house(call, house):
    call.session.update(session=TEXT)
    says(call, "oh!")
    call.response.create()
    done = until(call, "response.done")[-1].response
    assert (done.status, done.status_details.error.code) == ("failed", "model_error")
    assert "secret" not in done.model_dump_json()
    assert house.is_empty()


def test_an_answer_can_be_cancelled(call, house):
    call.session.update(session=TEXT)
    says(call, "slow " + "x" * 500)
    call.response.create()
    until(call, "response.output_text.delta")
    call.response.cancel()
    done = until(call, "response.done")[-1].response
    assert (done.status, done.status_details.reason) == ("cancelled", "client_cancelled")
    assert house.is_empty()
    call.response.cancel()
    assert until(call, "error")[-1].error.code == "response_cancel_not_active"


def test_an_answer_can_be_cancelled_before_it_begins(call):
    call.session.update(session=TEXT)
    says(call, "slow " + "x" * 500)
    call.response.create()
    call.response.cancel()
    events = until(call, "response.done")
    assert "response.created" in kinds(events)
    assert events[-1].response.status == "cancelled"


def test_there_is_one_answer_at_a_time(call):
    call.session.update(session=TEXT)
    says(call, "slow " + "x" * 30)
    call.response.create()
    until(call, "response.created")
    call.response.create()
    assert until(call, "error")[-1].error.code == "conversation_already_has_active_response"
    assert until(call, "response.done")[-1].response.status == "completed"


def test_a_tool_is_called_and_answered(call, house):
    tool = {"type": "function", "name": "forecast", "parameters": {"type": "object"}}
    call.session.update(session=TEXT | {"tools": [tool]})
    says(call, "weather")
    call.response.create()
    events = until(call, "response.done")
    (called,) = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert (called.name, called.arguments) == ("forecast", '{"x":1}')
    assert events[-1].response.output[1].call_id == "call_1"
    call.conversation.item.create(item={"type": "function_call_output", "call_id": "call_1", "output": "rain"})
    call.response.create()
    assert until(call, "response.done")[-1].response.output[0].content[0].text == "rain"
    turns = house.models["talker"].seen[-1].turns
    assert [turn.role for turn in turns] == ["user", "assistant", "tool"]
    assert (turns[1].calls[0].id, turns[2].answers) == ("call_1", "call_1")


def test_a_client_that_hangs_up_leaves_nothing(house):
    with connect(f"ws://127.0.0.1:{house.port}/v1/realtime?model=talker") as call:
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "slow " + "x" * 500}]}
        call.send(json.dumps({"type": "conversation.item.create", "item": item}))
        call.send(json.dumps({"type": "response.create"}))
        while json.loads(call.recv())["type"] != "response.output_audio.delta":
            pass
    assert house.is_left()


# ---------------------------------------------------------------- speech in
def test_speech_is_heard_and_answered(call, house):
    for part in np.split(np.concatenate([QUIET, VOICE, QUIET]), 30):
        call.input_audio_buffer.append(audio=coded(part))
    events = until(call, "response.done")
    assert kinds(events)[:5] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert 650 <= events[0].audio_start_ms <= 760  # 300 ms before it begins
    assert 2400 <= events[1].audio_end_ms <= 2600  # 500 ms after it ends
    assert events[0].item_id == events[2].item_id
    assert events[-1].response.output[0].content[0].transcript == "heard 1.8 with 0.9 loud"
    assert isinstance(house.models["talker"].seen[-1].turns[0].parts[0], Sound)


def test_speech_that_the_client_commits(call):
    call.session.update(session=TEXT)
    call.input_audio_buffer.append(audio=coded(VOICE[:100]))
    call.input_audio_buffer.commit()
    assert until(call, "error")[-1].error.code == "input_audio_buffer_commit_empty"
    call.input_audio_buffer.clear()
    call.input_audio_buffer.append(audio=coded(VOICE))
    call.input_audio_buffer.commit()
    call.response.create()
    assert "heard 1.0" in until(call, "response.done")[-1].response.output[0].content[0].text


def test_a_setting_in_the_midst_of_speech_does_not_lose_it(call):
    call.input_audio_buffer.append(audio=coded(VOICE))
    until(call, "input_audio_buffer.speech_started")
    call.session.update(session={"type": "realtime", "instructions": "be brief"})
    call.input_audio_buffer.append(audio=coded(QUIET))
    assert until(call, "response.done")[-1].response.status == "completed"


def test_speech_interrupts_an_answer(call, house):
    says(call, "slow " + "x" * 500)
    call.response.create()
    until(call, "response.output_audio.delta")
    call.input_audio_buffer.append(audio=coded(VOICE))
    events = until(call, "response.done")
    assert "input_audio_buffer.speech_started" in kinds(events)
    assert (events[-1].response.status, events[-1].response.status_details.reason) == ("cancelled", "turn_detected")
    assert house.is_empty()


def test_what_was_said_is_written_down(call):
    hearing = {"turn_detection": None, "transcription": {"model": "talker"}}
    call.session.update(session={"type": "realtime", "audio": {"input": hearing}})
    for model in ("talker", "nobody"):
        call.session.update(session={"type": "realtime", "audio": {"input": {"transcription": {"model": model}}}})
        call.input_audio_buffer.append(audio=coded(VOICE))
        call.input_audio_buffer.commit()
        kind = "completed" if model == "talker" else "failed"
        last = until(call, f"conversation.item.input_audio_transcription.{kind}")[-1]
        assert getattr(last, "transcript", "") == ("heard 1.0 with 0.9 loud" if model == "talker" else "")


# ---------------------------------------------------------------- truncation
WORDS = "one two three four five six"


def spoken(call):
    says(call, WORDS)
    call.response.create()
    events = until(call, "response.done")
    return events[-1].response.output[0].id


def test_what_was_not_heard_was_never_said(call, house):
    item = spoken(call)
    call.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=11 * 20)
    assert until(call, "conversation.item.truncated")[-1].audio_end_ms == 220
    call.conversation.item.retrieve(item_id=item)
    assert until(call, "conversation.item.retrieved")[-1].item.content[0].transcript == "one two"
    says(call, "next")
    call.response.create()
    until(call, "response.done")
    assert house.models["talker"].seen[-1].turns[1] == Turn("assistant", ("one two",))


def test_a_truncation_must_be_possible(call):
    item = spoken(call)
    for wrong in ({"audio_end_ms": 60_000}, {"audio_end_ms": -1}, {"item_id": "nothing", "audio_end_ms": 1}):
        call.conversation.item.truncate(**{"item_id": item, "content_index": 0} | wrong)
        assert until(call, "error")[-1].error.type == "invalid_request_error"
    call.conversation.item.delete(item_id=item)
    assert until(call, "conversation.item.deleted")[-1].item_id == item


@pytest.mark.parametrize(
    ("end_ms", "heard"), [(0, ""), (60, "one"), (80, "one"), (100, "one"), (140, "one two"), (540, WORDS)]
)
def test_the_cut_is_at_the_last_whole_word(end_ms, heard):
    item = Item("a", "assistant", is_spoken=True)
    for letter in WORDS:
        item.text += letter
        item.add_sound(bytes(20 * 48))
    item.cut(end_ms)
    assert item.text == heard


def test_text_that_ran_ahead_of_the_speech_was_not_heard():
    item = Item("a", "assistant", is_spoken=True, text="one two")
    item.add_sound(bytes(1000 * 48))
    item.text += " three four five six seven"  # written, and cancelled before it was spoken
    item.cut(990)
    assert item.text == "one two"


# ---------------------------------------------------------------- a model that goes on with its client
@pytest.fixture
def listener(house):
    house.models["listener"].seen.clear()
    with calling(house, "listener") as connection:
        yield connection, house.models["listener"].seen


def answered(call, text):
    says(call, text)
    call.response.create()
    return until(call, "response.done")[-1].response.output[0].content[0].transcript


def test_a_model_that_goes_on_is_told_only_what_is_new(listener, house):
    call, seen = listener
    assert [answered(call, word) for word in ("a", "b", "c")] == ["a 1", "b 3", "c 5"]
    assert [[turn.parts[0] for turn in chat.turns] for chat in seen] == [["a"], ["a 1", "b"], ["b 3", "c"]]


def test_it_goes_on_from_what_was_heard_of_an_answer(listener):
    call, seen = listener
    says(call, "slow " + "x" * 500)
    call.response.create()
    until(call, "response.output_audio.delta")
    begun = time.monotonic()
    call.response.cancel()
    done = until(call, "response.done")[-1].response
    assert (done.status, time.monotonic() - begun < 2) == ("cancelled", True)
    call.conversation.item.truncate(item_id=done.output[0].id, content_index=0, audio_end_ms=0)
    until(call, "conversation.item.truncated")
    assert answered(call, "go on") == "go on 2", "what nobody heard was not said"
    assert [len(chat.turns) for chat in seen] == [1, 0, 1], "one request, told to be quiet in between"


def test_a_change_behind_it_is_asked_for_anew(listener):
    call, seen = listener
    answered(call, "a")
    call.session.update(session={"type": "realtime", "instructions": "Be brief."})
    assert answered(call, "b") == "b 4"
    assert [len(chat.turns) for chat in seen] == [1, 4]


# ---------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    "said",
    [
        "no json",
        "[]",
        '{"type": "response.audio"}',
        "{}",
        '{"type": "session.update"}',
        '{"type": "session.update", "session": {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}}',
        '{"type": "session.update", "session": {"audio": {"output": {"format": {"type": "audio/pcmu"}}}}}',
        '{"type": "session.update", "session": {"audio": {"input": {"turn_detection": {"threshold": 7}}}}}',
        '{"type": "session.update", "session": {"max_output_tokens": 0}}',
        '{"type": "input_audio_buffer.append", "audio": "?"}',
        '{"type": "input_audio_buffer.append", "audio": "AAAA"}',
        '{"type": "input_audio_buffer.append", "audio": 7}',
        '{"type": "conversation.item.create", "item": 7}',
        '{"type": "conversation.item.create", "item": {"type": "message", "role": "king", "content": []}}',
        '{"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": [7]}}',
        '{"type": "conversation.item.delete"}',
        '{"type": "response.create", "response": {"conversation": "none"}}',
    ],
)
def test_what_is_wrong_is_told_and_the_call_goes_on(house, said):
    with connect(f"ws://127.0.0.1:{house.port}/v1/realtime?model=talker") as call:
        call.recv()
        call.send(said)
        error = json.loads(call.recv())
        assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
        call.send('{"type": "input_audio_buffer.clear"}')
        assert json.loads(call.recv())["type"] == "input_audio_buffer.cleared"


@pytest.mark.parametrize("model", ["arm", "nobody"])
def test_a_model_that_does_not_chat_is_refused_before_the_call(house, model):
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{house.port}/v1/realtime?model={model}")
    assert refused.value.response.status_code == 404
    assert json.loads(refused.value.response.body)["error"]["param"] == "model"


# ---------------------------------------------------------------- parts
def test_items_go_where_they_are_put():
    talk = Conversation()
    talk.add(Item("b", "user", ["b"]))
    assert talk.add(Item("c", "user", ["c"]), "b") == "b"
    assert talk.add(Item("a", "user", ["a"]), "root") is None
    assert [item.id for item in talk.items] == ["a", "b", "c"]
    for wrong in (lambda: talk.add(Item("a", "user")), lambda: talk.add(Item("d", "user"), "x")):
        with pytest.raises(Refusal):
            wrong()


def test_a_conversation_is_not_endless(monkeypatch):
    monkeypatch.setattr("mstar.server.conversation.LARGEST", 5000)
    talk = Conversation()
    talk.add(Item("a", "user", [Sound(np.zeros(1000, np.float32), RATE)]))
    with pytest.raises(Refusal):
        talk.add(Item("b", "user", ["x" * 1001]))


@pytest.mark.parametrize("size", [7, 480, 5000, 72_000])
def test_ears_hear_the_same_however_it_comes(size):
    sound = pcm(np.concatenate([QUIET, VOICE, QUIET]))
    ears = Ears(0.5, 500)
    heard = [one for at in range(0, len(sound), size * 2) for one in ears.feed(sound[at : at + size * 2])]
    assert [(one.is_start, round(one.at_ms, -2)) for one in heard] == [(True, 1000), (False, 2500)]


def test_ears_ignore_a_click_and_a_steady_noise():
    rng, ears = np.random.default_rng(0), Ears(0.5, 500)
    hum = rng.normal(0, 0.015, 4 * RATE).astype(np.float32)
    hum[RATE : RATE + 600] += 0.5
    assert ears.feed(pcm(hum)) == []
    loud = hum[:RATE] + VOICE
    assert ears.feed(pcm(loud))[0].is_start


def test_an_answer_begins_soon_after_the_question(call):
    call.session.update(session=TEXT)
    says(call, "hello")
    begun = time.monotonic()
    call.response.create()
    until(call, "response.output_text.delta")
    assert time.monotonic() - begun < 2
