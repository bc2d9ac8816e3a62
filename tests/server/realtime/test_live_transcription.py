"""Tests of live transcription: its policy, and transcription sessions of the OpenAI SDK with a served Whisper."""

import asyncio
import base64
import time
from contextlib import contextmanager

import numpy as np
import pytest
import soundfile
from openai import OpenAI

from mstar.models.whisper.whisper import Whisper
from mstar.nn.audio.resampling import resample
from mstar.requests import AudioInput, Segment, Transcript, TranscriptionRequest
from mstar.server.realtime import conversation, live_transcription
from mstar.server.realtime.live_transcription import MAX_UNSTABLE_S, MAX_WINDOW_S, LiveTranscription, LocalAgreement
from tests.models.transcripts import one_thread, word_error_rate
from tests.models.whisper.test_alignment import FOLDER
from tests.server.model_server import serve_models
from tests.server.toy_voice_model import Talker

pytestmark = pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")
RATE = 24_000
DELTA = "conversation.item.input_audio_transcription.delta"
COMPLETED = "conversation.item.input_audio_transcription.completed"


# ---------------------------------------------------------------- policy
def words(text, start=0.0):
    return [Segment(start + index, start + index + 1, f" {word}") for index, word in enumerate(text.split())]


def test_text_is_stable_after_two_equal_passes():
    agreement = LocalAgreement()
    assert agreement.add(words("the quick")) == ""
    assert agreement.add(words("The quick, brown")) == " The quick,"
    assert agreement.add(words("The quick Brown ox")) == " Brown"
    assert agreement.add(words("The quick brown fox")) == ""
    assert agreement.add(words("a wick round fox jumps")) == " fox", "what was sent does not change"
    assert agreement.add(words("The quick brown fox jumped"), is_final=True) == " jumped"
    assert agreement.stable_end == 5


class Speaker:
    """Someone who speaks a word every second, and a model that transcribes all but the last half second of a window."""

    def __init__(self, pass_s=0.0, *, has_words=True):
        self.windows, self.deltas = [], []
        self.pass_s, self.has_words = pass_s, has_words
        self.seconds = 0.0
        self.live = LiveTranscription(self.read, self.transcribe, self.send)

    def read(self, start):
        return AudioInput(np.arange(int(start * 10), int(self.seconds * 10)), 10)

    async def transcribe(self, audio):
        self.windows.append(len(audio.samples) / audio.rate)
        await asyncio.sleep(self.pass_s)
        first = int(audio.samples[0]) / 10 if len(audio.samples) else 0
        end = first + self.windows[-1] - 0.5
        spoken = [Segment(n - first, n + 0.9 - first, f" w{n}") for n in range(round(first + 0.4), int(end) + 1)]
        text = "".join(word.text for word in spoken).strip()
        return Transcript(text, (), "en", 0.0, tuple(spoken) if self.has_words else None)

    async def send(self, delta):
        self.deltas.append(delta)

    async def speak(self, seconds):
        for step in range(1, int(seconds * 10) + 1):
            self.seconds = step / 10
            self.live.update(self.seconds)
            await asyncio.sleep(0.001)
        transcript = await self.live.finish(self.read(0))
        assert "".join(self.deltas) == transcript
        return transcript


def test_deltas_are_early_and_the_window_is_bounded():
    speaker = Speaker()
    transcript = asyncio.run(speaker.speak(60))
    assert transcript == " ".join(f"w{number}" for number in range(60))
    assert len(speaker.deltas) > 30
    assert max(speaker.windows) <= MAX_WINDOW_S + 3


def test_passes_are_fewer_when_they_take_longer():
    fast, slow = Speaker(), Speaker(pass_s=2.0)
    asyncio.run(fast.speak(6))
    assert 9 <= len(fast.windows) <= 13

    async def two_passes():
        slow.seconds = 0.5
        slow.live.update(0.5)
        await slow.live._task
        for seconds in (1.0, 2.0, 4.0, 4.6):
            slow.seconds = seconds
            slow.live.update(seconds)
        await asyncio.sleep(0)
        slow.live.cancel()

    asyncio.run(two_passes())
    assert slow.windows == [0.5, 4.6], "a pass of two seconds is followed by four seconds without one"


def test_audio_without_agreement_is_settled_after_a_while():
    speaker = Speaker()
    seen = speaker.transcribe

    async def transcribe(audio):
        transcript = await seen(audio)
        noise = tuple(Segment(word.start, word.end, f" {len(speaker.windows)}") for word in transcript.words)
        return Transcript("", (), "en", 0.0, noise)

    speaker.live = LiveTranscription(speaker.read, transcribe, speaker.send)
    asyncio.run(speaker.speak(70))
    assert MAX_UNSTABLE_S < max(speaker.windows) <= MAX_UNSTABLE_S + 1


def test_a_model_without_word_times_transcribes_once_more():
    speaker = Speaker(has_words=False)
    assert asyncio.run(speaker.speak(5)) == "w0 w1 w2 w3 w4"
    assert (len(speaker.windows), len(speaker.deltas)) == (2, 1)


# ---------------------------------------------------------------- sessions
@pytest.fixture(scope="module")
def harbor():
    """The recording as 24 kHz PCM."""
    samples, rate = soundfile.read(FOLDER / "harbor.ogg", dtype="float32")
    samples = np.asarray(resample(samples, rate, RATE))
    return (np.clip(samples, -1, 1) * 32767).astype("<i2")


@contextmanager
def open_session(server, **query):
    client = OpenAI(api_key="none", base_url=f"{server.url}/v1", websocket_base_url=f"ws://127.0.0.1:{server.port}/v1")
    with client, client.realtime.connect(**query) as connection:
        assert connection.recv().type == "session.created"
        yield connection


def transcription_settings(model, **fields):
    audio_input = {"transcription": {"model": model, "language": "en"}, **fields}
    return {"type": "transcription", "audio": {"input": audio_input}}


def receive_until(connection, kind):
    events = []
    while not events or events[-1].type != kind:
        events.append(connection.recv())
        assert events[-1].type != "error" or kind == "error", events[-1]
    return events


def test_a_transcription_session_has_no_responses():
    with serve_models({"talker": Talker()}) as server:
        with open_session(server, model="talker") as connection:
            connection.session.update(session=transcription_settings("talker", turn_detection=None))
            updated = receive_until(connection, "session.updated")[-1].session
            assert (updated.type, updated.audio.input.transcription.language) == ("transcription", "en")
            connection.response.create()
            assert receive_until(connection, "error")[-1].error.code == "invalid_session_type"
            connection.session.update(session={"type": "realtime"})
            assert receive_until(connection, "error")[-1].error.param == "type"
        with open_session(server, extra_query={"intent": "transcription"}) as connection:
            voice = (np.sin(np.arange(RATE) / 13) * 16_000).astype("<i2")
            for part in (voice, np.zeros(RATE, "<i2")):
                connection.input_audio_buffer.append(audio=base64.b64encode(part.tobytes()).decode())
            events = receive_until(connection, COMPLETED)
            assert events[-1].transcript.startswith("heard 1.")
            assert not [event for event in events if event.type.startswith("response.")]
        assert server.wait_until_idle()


def test_a_transcription_session_keeps_one_item(monkeypatch):
    monkeypatch.setattr(conversation, "MAX_ITEMS", 2)
    part = base64.b64encode(bytes(RATE)).decode()
    with (
        serve_models({"talker": Talker()}) as server,
        open_session(server, extra_query={"intent": "transcription"}) as connection,
    ):
        connection.session.update(session=transcription_settings("talker", turn_detection=None))
        receive_until(connection, "session.updated")
        items = []
        for _ in range(4):
            connection.input_audio_buffer.append(audio=part)
            connection.input_audio_buffer.commit()
            events = receive_until(connection, COMPLETED)
            (committed,) = [event for event in events if event.type == "input_audio_buffer.committed"]
            items.append((committed.item_id, committed.previous_item_id))
        assert [previous for _, previous in items] == [None, *(item for item, _ in items[:-1])]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_speech_is_transcribed_while_it_arrives(harbor, monkeypatch):
    monkeypatch.setattr(live_transcription, "PASS_TIME_FACTOR", 0.0)  # on a busy machine there would be two passes
    model = Whisper()
    whole = AudioInput(harbor.astype(np.float32) / np.float32(32768), RATE)
    expected = model.run(TranscriptionRequest(whole)).result.text  # the model is loaded before the session
    with one_thread(), serve_models({"whisper": model}) as server:
        with open_session(server, extra_query={"intent": "transcription"}) as connection:
            connection.session.update(session=transcription_settings("whisper", turn_detection=None))
            receive_until(connection, "session.updated")
            sent = time.monotonic()
            for at in range(0, len(harbor), RATE // 10):  # as fast as a microphone
                part = harbor[at : at + RATE // 10]
                connection.input_audio_buffer.append(audio=base64.b64encode(part.tobytes()).decode())
                time.sleep(max(0.0, sent + at / RATE + 0.1 - time.monotonic()))
            connection.input_audio_buffer.commit()
            events = receive_until(connection, COMPLETED)
        early = events[: [event.type for event in events].index("input_audio_buffer.committed")]
        deltas = [event.delta for event in events if event.type == DELTA]
        transcript = events[-1].transcript
        assert "".join(deltas) == transcript
        assert [event for event in early if event.type == DELTA], "there is text before the end of the speech"
        assert word_error_rate(expected, transcript) <= 0.1
