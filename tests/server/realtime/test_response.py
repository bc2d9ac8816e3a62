"""Word-exact interruption of realtime responses: what was played remains, by the client's or the server's clock."""

import time

import numpy as np
import pytest

from mstar.requests import Message, WordTimestamp
from mstar.server.realtime.conversation import Item
from tests.server.model_server import serve_models
from tests.server.realtime.test_session import (
    QUIET,
    VOICE,
    WORDS,
    open_session,
    send_text,
    speak_response,
    to_base64_pcm,
    wait_for_event,
)
from tests.server.toy_narrator import Narrator
from tests.server.toy_voice_model import RATE

# The OpenAI SDK uses the deprecated call of its websockets library.
pytestmark = pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")


@pytest.fixture(scope="module")
def model_server():
    with serve_models({"narrator": Narrator()}) as started:
        yield started


def words_played(text, end_ms):
    """The words whose last letter has been played, at 20 ms per letter."""
    ends = [index for index in range(len(text) + 1) if text[index : index + 1] in (" ", "") and 20 * index <= end_ms]
    return text[: max(ends, default=0)]


@pytest.mark.parametrize(
    ("end_ms", "remaining"), [(0, ""), (59, ""), (60, "one"), (139, "one"), (140, "one two"), (540, WORDS)]
)
def test_truncation_keeps_the_words_that_were_spoken(end_ms, remaining):
    item = Item("a", "assistant", is_audio=True, text=f"{WORDS} and more, which has no audio yet", status="incomplete")
    for word in WORDS.split():
        start = WORDS.index(word)
        item.words.append(WordTimestamp(word, start / 50, (start + len(word)) / 50, start, start + len(word)))
    item.add_audio(bytes(len(WORDS) * 20 * 48))
    item.truncate(end_ms)
    assert (item.text, words_played(WORDS, end_ms)) == (remaining, remaining)


@pytest.fixture
def narrator_session(model_server):
    with open_session(model_server, "narrator") as connection:
        yield connection


def retrieve_text(realtime_session, item):
    realtime_session.conversation.item.retrieve(item_id=item)
    return wait_for_event(realtime_session, "conversation.item.retrieved")[-1].item.content[0].transcript


def test_a_truncated_response_ends_at_the_last_word_that_was_played(narrator_session, model_server):
    item = speak_response(narrator_session)
    narrator_session.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=250)
    wait_for_event(narrator_session, "conversation.item.truncated")
    assert retrieve_text(narrator_session, item) == "one two", "`three` ends at 260 ms"
    send_text(narrator_session, "next")
    narrator_session.response.create()
    wait_for_event(narrator_session, "response.done")
    assert model_server.models["narrator"].seen[-1].messages[1] == Message("assistant", ("one two",))


def interrupt_by_speech(realtime_session, text, after):
    """Speak while a response is played; return its item, and the position at which the server cut it."""
    send_text(realtime_session, text)
    started = time.monotonic()
    realtime_session.response.create()
    wait_for_event(realtime_session, after)
    time.sleep(0.4)
    realtime_session.input_audio_buffer.append(audio=to_base64_pcm(VOICE[: RATE // 2]))
    cut = wait_for_event(realtime_session, "conversation.item.truncated")[-1]
    return cut.item_id, cut.audio_end_ms, 1000 * (time.monotonic() - started)


@pytest.mark.parametrize(
    ("text", "after", "least_ms"),
    [("slow " + "five " * 60, "response.output_audio.delta", 20), ("five " * 200, "response.done", 400)],
    ids=["while it is generated", "while it is played"],
)
def test_speech_cuts_a_response_at_the_last_word_that_can_have_been_played(narrator_session, text, after, least_ms):
    item, played_ms, elapsed_ms = interrupt_by_speech(narrator_session, text, after)
    assert least_ms <= played_ms <= elapsed_ms
    assert retrieve_text(narrator_session, item) == words_played(text, played_ms)


def test_the_position_of_the_client_replaces_that_of_the_server(narrator_session):
    text = "five " * 200
    item, played_ms, _ = interrupt_by_speech(narrator_session, text, "response.done")
    for end_ms in (played_ms + 300, 200):
        narrator_session.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=end_ms)
        wait_for_event(narrator_session, "conversation.item.truncated")
        assert retrieve_text(narrator_session, item) == words_played(text, end_ms)
    narrator_session.input_audio_buffer.append(audio=to_base64_pcm(np.append(QUIET, VOICE)))
    wait_for_event(narrator_session, "input_audio_buffer.speech_started")
    assert retrieve_text(narrator_session, item) == words_played(text, 200), "it is not cut again"
