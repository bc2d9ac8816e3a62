"""Tests of `semantic_vad`: its policy, and sessions with the shipped turn detector over a real WebSocket."""

import asyncio
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from mstar import Component, Model, op, walk
from mstar.media.vad import SAMPLE_RATE, SpeechEdge
from mstar.models.turn_detector.turn_detector import TurnDetector
from mstar.nn.audio.resampling import resample
from mstar.requests import AudioInput, TurnDetectionRequest, TurnPrediction
from mstar.server.realtime import turn_predictor
from mstar.server.realtime.config import SemanticVad
from mstar.server.realtime.semantic_turns import MAX_HOLD_MS, PAUSE_MS, WINDOW_MS, SemanticTurns, TurnContext
from tests.models.turn_detector.held_out import RATE, of_kind
from tests.server.model_server import serve_models
from tests.server.realtime.test_session import kinds, open_session, send_text, to_base64_pcm, wait_for_event
from tests.server.toy_voice_model import Talker

# The OpenAI SDK uses the deprecated call of its websockets library.
pytestmark = pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")
FINISHED = TurnPrediction(0.0, 1.0, 0.0)
UNDECIDED = TurnPrediction(0.5, 0.5, 0.0)
THINKING = TurnPrediction(1.0, 0.0, 0.0)
LISTENING = TurnPrediction(0.1, 0.1, 0.8)


# ---------------------------------------------------------------- policy
class User:
    """A user whose voice activity is given as edges, and a model with given predictions."""

    def __init__(self, *predictions, eagerness="auto", assistant=False):
        self.predictions = list(predictions)
        self.is_assistant_speaking = assistant
        self.read = []
        settings = SemanticVad(type="semantic_vad", eagerness=eagerness)
        context = TurnContext(self.predict, lambda: self.is_assistant_speaking)
        self.turns = SemanticTurns(settings, context, self.read_audio)

    def read_audio(self, start_ms, end_ms):
        self.read.append((start_ms, end_ms))
        return AudioInput(np.zeros((end_ms - start_ms) * SAMPLE_RATE // 1000, np.float32), SAMPLE_RATE)

    async def predict(self, audio):
        assert len(audio.samples) <= WINDOW_MS * SAMPLE_RATE // 1000
        return self.predictions.pop(0)

    def hear(self, end_ms, *edges):
        """Process audio until `end_ms`; edges are (ms, starts). Returns the edges of turns."""

        async def run():
            speech = [SpeechEdge(is_start, at_ms) for at_ms, is_start in edges]
            return [(edge.at_ms, edge.is_start) async for edge in self.turns.process(speech, end_ms)]

        return asyncio.run(run())


def test_a_finished_turn_ends_at_its_first_pause():
    user = User(FINISHED)
    assert user.hear(2200, (1000, True)) == [(1000, True)]
    assert user.hear(3000, (2200, False)) == [(2200, False)]
    assert user.turns.is_idle


@pytest.mark.parametrize(("eagerness", "end_ms"), [("low", 6000), ("medium", 4000), ("auto", 4000), ("high", 3000)])
def test_the_silence_after_a_turn_depends_on_the_prediction_and_the_eagerness(eagerness, end_ms):
    user = User(UNDECIDED, eagerness=eagerness)
    assert user.hear(2200, (1000, True), (2000 + PAUSE_MS, False)) == [(1000, True)]
    assert user.hear(end_ms - 1) == []
    assert user.turns.is_turn
    assert user.hear(end_ms) == [(end_ms, False)]


def test_a_pause_in_a_sentence_does_not_end_the_turn():
    user = User(THINKING, FINISHED)
    assert user.hear(4000, (1000, True), (2200, False), (3900, True)) == [(1000, True)]
    assert user.hear(9000, (5200, False)) == [(5200, False)]
    assert [end_ms for _, end_ms in user.read] == [2200, 5200]
    assert user.read[1][0] == 5200 - WINDOW_MS


def test_audio_that_arrives_at_once_has_the_same_turns():
    edges = [(1000, True), (2200, False), (2900, True), (4200, False), (9000, True)]
    expected = [(1000, True), (4200, False), (9000, True)]
    assert User(THINKING, FINISHED).hear(9100, *edges) == expected
    piecewise, user = [], User(THINKING, FINISHED)
    for end_ms in range(0, 9200, 20):
        piecewise += user.hear(end_ms, *(edge for edge in edges if end_ms - 20 < edge[0] <= end_ms))
    assert piecewise == expected


def test_a_backchannel_is_no_turn():
    user = User(LISTENING, LISTENING, assistant=True)
    assert user.hear(1500, (1000, True)) == []
    assert not user.turns.is_idle, "its audio could be needed"
    assert user.hear(3000, (1550, False)) == []
    assert user.turns.is_idle
    assert user.hear(6000, (4000, True), (4500, False)) == []


def test_a_yes_after_the_assistant_has_finished_is_an_answer():
    user = User(LISTENING, assistant=True)
    assert user.hear(1300, (1000, True)) == []
    user.is_assistant_speaking = False
    assert user.hear(1600, (1500, False)) == [(1000, True)]
    assert user.hear(9000) == [(1700, False)]


def test_an_interruption_is_held_until_it_is_certain():
    assert User(FINISHED, assistant=True).hear(2000, (1000, True), (1400, False)) == [(1000, True), (1400, False)]
    assert User(THINKING, assistant=True).hear(1599, (1000, True)) == []
    assert User(THINKING, assistant=True).hear(1600, (1000, True)) == [(1000, True)]


def test_long_speech_interrupts_in_any_case():
    user = User(LISTENING, assistant=True)
    assert user.hear(999 + MAX_HOLD_MS, (1000, True)) == []
    assert user.hear(1000 + MAX_HOLD_MS) == [(1000, True)]


# ---------------------------------------------------------------- sessions
@pytest.fixture(scope="module")
def model_server():
    with serve_models({"talker": Talker(), "turns": TurnDetector()}) as started:
        yield started


@pytest.fixture(autouse=True)
def busy_machines_have_time(monkeypatch):
    monkeypatch.setattr(turn_predictor, "TIMEOUT_S", 30.0)


@contextmanager
def semantic_session(model_server, **settings):
    with open_session(model_server, "talker") as connection:
        turn_detection = {"type": "semantic_vad", **settings}
        connection.session.update(session={"type": "realtime", "audio": {"input": {"turn_detection": turn_detection}}})
        updated = wait_for_event(connection, "session.updated")[-1].session.audio.input.turn_detection
        assert (updated.type, updated.eagerness) == ("semantic_vad", settings.get("eagerness", "auto"))
        yield connection


def recording(kind, is_clear):
    """The first held-out recording of a kind about which the detector is right: sessions are tested here, not it."""
    detector = TurnDetector()
    return next(one for one in of_kind(kind) if is_clear(detector.run(TurnDetectionRequest(one.sound())).result))


def complete_sentence():
    return recording("sentence", lambda made: made.continues < 0.3)


def broken_off_sentence():
    return recording("pause", lambda made: made.continues > 0.6)


def acknowledgment():
    return recording("backchannel", lambda made: made.backchannel > 0.6)


def silence(seconds):
    return np.zeros(int(seconds * RATE), np.float32)


def say(connection, *parts):
    """Append audio at 16 kHz in messages of 40 ms."""
    samples = np.asarray(resample(np.concatenate(parts), RATE, SAMPLE_RATE)) * 0.8
    for start in range(0, len(samples), SAMPLE_RATE // 25):
        connection.input_audio_buffer.append(audio=to_base64_pcm(samples[start : start + SAMPLE_RATE // 25]))


def start_long_response(connection):
    """A response of 10 s, which is in progress for 5 s."""
    send_text(connection, "slow " + "x" * 500)
    connection.response.create()
    wait_for_event(connection, "response.output_audio.delta")


def test_a_finished_sentence_is_answered(model_server):
    sentence = complete_sentence()
    with semantic_session(model_server, eagerness="high") as connection:
        say(connection, silence(0.5), sentence.samples, silence(2.2))
        events = wait_for_event(connection, "response.done")
    assert kinds(events)[:3] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
    ]
    assert events[1].audio_end_ms >= 500 + 1000 * len(sentence.samples) / RATE
    assert events[-1].response.status == "completed"


def test_a_pause_does_not_end_a_turn(model_server):
    first, second = broken_off_sentence(), complete_sentence()
    with semantic_session(model_server) as connection:
        say(connection, silence(0.5), first.samples, silence(0.7), second.samples, silence(4.2))
        events = wait_for_event(connection, "response.done")
    assert kinds(events).count("input_audio_buffer.committed") == 1
    seconds = (len(first.samples) + len(second.samples)) / RATE
    (stopped,) = [one for one in events if one.type == "input_audio_buffer.speech_stopped"]
    assert stopped.audio_end_ms / 1000 >= 0.5 + seconds + 0.7


def test_a_backchannel_does_not_stop_a_response(model_server):
    with semantic_session(model_server) as connection:
        start_long_response(connection)
        say(connection, silence(0.5), acknowledgment().samples, silence(1.0))
        events = wait_for_event(connection, "response.done")
    assert events[-1].response.status == "completed"
    assert not any(kind.startswith("input_audio_buffer") for kind in kinds(events))


@pytest.mark.parametrize("kind", ["short", "sentence"])
def test_a_command_stops_a_response(model_server, kind):
    with semantic_session(model_server) as connection:
        start_long_response(connection)
        say(connection, silence(0.5), recording(kind, lambda made: made.backchannel < 0.2).samples, silence(1.0))
        events = wait_for_event(connection, "response.done")
    assert (events[-1].response.status, events[-1].response.status_details.reason) == ("cancelled", "turn_detected")


class SlowClassifier(Component):
    def __init__(self, released):
        self.released = released

    @op
    def predict(self, sound: AudioInput) -> TurnPrediction:
        self.released.wait(10)
        return FINISHED


class SlowDetector(Model):
    """Needs longer for a prediction than sessions wait."""

    def __init__(self):
        self.released = threading.Event()
        self.turns = SlowClassifier(self.released)

    @walk
    def predict_turn(self, sound: AudioInput) -> TurnPrediction:
        return self.turns.predict(sound)

    async def route(self, request: TurnDetectionRequest) -> TurnPrediction:
        return await self.predict_turn(request.audio)


def test_a_detector_that_fails_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(turn_predictor, "TIMEOUT_S", 0.05)
    detector = SlowDetector()
    with serve_models({"talker": Talker(), "turns": detector}) as server, semantic_session(server) as connection:
        say(connection, silence(0.5), of_kind("sentence")[0].samples, silence(1.5))
        stopped = wait_for_event(connection, "input_audio_buffer.speech_stopped")[-1]
        detector.released.set()
        seconds = 0.5 + len(of_kind("sentence")[0].samples) / RATE + 1
        assert seconds - 0.6 <= stopped.audio_end_ms / 1000 <= seconds + 0.1, "its last sounds are soft"
