"""A voice conversation with real weights: it is spoken to, is interrupted, and goes on from what was heard."""

import base64
import time

import numpy as np
import pytest
from openai import OpenAI

from mstar import Said
from mstar.asks import Chat, Speech, Turn
from mstar.media.ears import RATE as LINE_RATE
from mstar.models.voice.assistant import Assistant
from mstar.models.voice.speaker import RATE
from mstar.nn.sampling import Sampling
from mstar.testing.parity import parity
from mstar.walk.said import AWAITED
from tests.models.parts import one_thread, text_of
from tests.models.test_assistant import FILE, sound_of
from tests.server.test_realtime import until
from tests.server.test_serve import ready, served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning"),
]
SHORT = Sampling(max_tokens=24)
STORY = Turn("user", ("Tell me a story about a fox.",))
LEGS = Turn("user", ("How many legs does it have?",))
HEARD = Turn("assistant", ("In the heart of a dense forest, a fox",))
TALK = 2
"""The number of the walk that answers: the prompt is made and read before it."""


@pytest.fixture(scope="module")
def model():
    with one_thread():
        yield Assistant()


def chat(*turns, continues=True):
    return Chat(turns, SHORT, speaks=True, continues=continues)


def test_it_goes_on_as_if_only_what_was_heard_had_been_said(model):
    said = [Said(chat(), walk=TALK, counts={"Text": 9}), Said(chat(HEARD, LEGS), walk=AWAITED)]
    went_on = model.run(chat(STORY), said)
    told = model.run(chat(STORY, HEARD, LEGS, continues=False))
    assert text_of(model, went_on.emissions[9:]) == text_of(model, told.emissions)
    assert [one.reason for one in went_on.answers][:2] == ["cut", "cut"]
    assert went_on.result == told.result
    parity(model, chat(STORY), said=said, schedules=2)


def pcm(sound):
    """Speech as a client sends it."""
    at = np.arange(0, len(sound.samples), RATE / LINE_RATE)
    samples = np.interp(at, np.arange(len(sound.samples)), sound.samples)
    return (samples * 32767).astype("<i2").tobytes()


def says(call, speech, quiet_s=0.8):
    """Speak, and be quiet then."""
    spoken = speech + bytes(2 * int(LINE_RATE * quiet_s))
    for start in range(0, len(spoken), 9600):
        call.input_audio_buffer.append(audio=base64.b64encode(spoken[start : start + 9600]).decode())


def test_a_conversation_over_the_line(model, report):
    story, legs = (pcm(sound_of(model.run(Speech(turn.parts[0])))) for turn in (STORY, LEGS))
    with served(FILE) as (process, url):
        ready(process)
        line = OpenAI(api_key="none", base_url=f"{url}/v1", websocket_base_url=url.replace("http", "ws") + "/v1")
        with line, line.realtime.connect(model="assistant") as call:
            call.session.update(session={"type": "realtime", "max_output_tokens": 100})
            begun = time.monotonic()
            says(call, story)
            until(call, "response.output_audio.delta")
            first = time.monotonic() - begun
            begun = time.monotonic()
            says(call, legs)  # into its answer
            events = until(call, "response.done")
            stopped = time.monotonic() - begun
            answer = events[-1].response
            assert (answer.status, answer.status_details.reason) == ("cancelled", "turn_detected")
            call.conversation.item.truncate(item_id=answer.output[0].id, content_index=0, audio_end_ms=400)
            events = until(call, "response.done")
            second = time.monotonic() - begun
            done = events[-1].response
            call.conversation.item.retrieve(item_id=answer.output[0].id)
            heard = until(call, "conversation.item.retrieved")[-1].item.content[0].transcript
    said = done.output[0].content[0].transcript
    report(
        f"conversation: first sound {first:.2f} s after the question began; interrupted, it was quiet after "
        f"{stopped:.2f} s; heard {heard!r} of its answer, and said {said!r} {second:.2f} s after that began"
    )
    assert done.status in ("completed", "incomplete"), "it may have been told to say no more"
    assert said
