"""Voice conversation with published weights: interrupted by speech, it resumes from the part that was played."""

import base64
import time

import numpy as np
import pytest
from openai import OpenAI

from mstar import ClientInput
from mstar.media.vad import SAMPLE_RATE as CLIENT_RATE
from mstar.models.assistant.assistant import Assistant
from mstar.models.hibari.tts import SAMPLE_RATE_HZ
from mstar.requests import ChatRequest, Message, Sampling, SpeechRequest
from mstar.testing.parity import parity
from mstar.walk.client_input import NEVER_INTERRUPTS
from tests.cli.test_serve import start_server, wait_ready
from tests.models.assistant.test_assistant import FILE, sound_of
from tests.models.transcripts import detokenize_emissions, one_thread
from tests.server.realtime.test_session import wait_for_event

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning"),
]
SHORT = Sampling(max_tokens=24)
STORY = Message("user", ("Tell me a story about a fox.",))
FOLLOW_UP = Message("user", ("How many legs does it have?",))
PLAYED_ANSWER = Message("assistant", ("In the heart of a dense forest, a fox",))
TALK = 2
"""Index of the walk that answers, after the prompt and prefill walks."""


@pytest.fixture(scope="module")
def model():
    with one_thread():
        yield Assistant()


def chat(*turns, continues=True):
    return ChatRequest(turns, SHORT, audio_output=True, multi_turn=continues)


@pytest.mark.nightly
def test_an_interrupted_conversation_resumes_from_what_was_played(model):
    inputs = [
        ClientInput(chat(), walk=TALK, counts={"Text": 9}),
        ClientInput(chat(PLAYED_ANSWER, FOLLOW_UP), walk=NEVER_INTERRUPTS),
    ]
    resumed = model.run(chat(STORY), inputs)
    expected = model.run(chat(STORY, PLAYED_ANSWER, FOLLOW_UP, continues=False))
    assert detokenize_emissions(model, resumed.emissions[9:]) == detokenize_emissions(model, expected.emissions)
    assert [one.finish_reason for one in resumed.answers][:2] == ["interrupted", "interrupted"]
    assert resumed.result == expected.result
    parity(model, chat(STORY), inputs=inputs, schedules=2)


@pytest.mark.nightly
def test_after_an_interruption_only_the_new_turn_is_read(model):
    """Every token of the prompts is computed once: the part of the answer that was played is in the prefix cache."""
    played = 9
    answer = detokenize_emissions(model, model.run(chat(STORY, continues=False)).emissions[:played])
    turns = (Message("assistant", (answer,)), FOLLOW_UP)
    inputs = [
        ClientInput(chat(), walk=TALK, counts={"Text": played}),
        ClientInput(chat(*turns), walk=NEVER_INTERRUPTS),
    ]
    fresh = Assistant()  # with an empty prefix cache
    fresh.run(chat(STORY), inputs)
    store, last_prompt = fresh.lm.decoder.store, fresh.lm.prompt_tokens(chat(STORY, *turns))
    assert store.prefix_hits == played + 1, "with the last token of the prompt, which the answer read"
    assert store.prefix_queries - store.prefix_hits == len(last_prompt) - 2 - played


def pcm(sound):
    """Speech as 16-bit PCM at the rate of the client."""
    at = np.arange(0, len(sound.samples), SAMPLE_RATE_HZ / CLIENT_RATE)
    samples = np.interp(at, np.arange(len(sound.samples)), sound.samples)
    return (samples * 32767).astype("<i2").tobytes()


def stream_speech(call, speech, quiet_s=0.8):
    """Send speech, then silence."""
    spoken = speech + bytes(2 * int(CLIENT_RATE * quiet_s))
    for start in range(0, len(spoken), 9600):
        call.input_audio_buffer.append(audio=base64.b64encode(spoken[start : start + 9600]).decode())


def test_a_conversation_over_the_websocket(model, report):
    story, legs = (pcm(sound_of(model.run(SpeechRequest(turn.parts[0])))) for turn in (STORY, FOLLOW_UP))
    with start_server(FILE) as (process, url):
        wait_ready(process)
        line = OpenAI(api_key="none", base_url=f"{url}/v1", websocket_base_url=url.replace("http", "ws") + "/v1")
        with line, line.realtime.connect(model="assistant") as call:
            call.session.update(session={"type": "realtime", "max_output_tokens": 100})
            begun = time.monotonic()
            stream_speech(call, story)
            wait_for_event(call, "response.output_audio.delta")
            first = time.monotonic() - begun
            begun = time.monotonic()
            stream_speech(call, legs)  # barge-in during the answer
            events = wait_for_event(call, "response.done")
            stopped = time.monotonic() - begun
            answer = events[-1].response
            assert (answer.status, answer.status_details.reason) == ("cancelled", "turn_detected")
            call.conversation.item.truncate(item_id=answer.output[0].id, content_index=0, audio_end_ms=400)
            events = wait_for_event(call, "response.done")
            second = time.monotonic() - begun
            done = events[-1].response
            call.conversation.item.retrieve(item_id=answer.output[0].id)
            played = wait_for_event(call, "conversation.item.retrieved")[-1].item.content[0].transcript
    answer_text = done.output[0].content[0].transcript
    report(
        f"conversation: first sound {first:.2f} s after the question began; interrupted, it was quiet after "
        f"{stopped:.2f} s; heard {played!r} of its answer, and said {answer_text!r} {second:.2f} s after that began"
    )
    assert done.status in ("completed", "incomplete"), "max_output_tokens can end it"
    assert answer_text
