"""Hibari with its published weights: its speech is intelligible, and faster than real time."""

import time

import numpy as np
import pytest

from mstar.models.hibari.tts import SAMPLE_RATE_HZ, Hibari
from mstar.models.whisper.whisper import Whisper
from mstar.requests import AudioInput, SpeechRequest, TranscriptionRequest
from mstar.testing.parity import parity
from tests.models.transcripts import one_thread, word_error_rate

TEXT = "The weather is fine today, and we are going to the beach. Dr. Miller paid 12 dollars for three books."


def sound_of(outcome):
    return np.concatenate([emission.value for emission in outcome.emissions])


@pytest.fixture(scope="module")
def model():
    made = Hibari()
    made.tts.prepare()
    return made


@pytest.mark.slow
def test_speech_is_intelligible(model, report):
    begun = time.process_time()
    outcome = model.run(SpeechRequest(TEXT))
    took_s, sound = time.process_time() - begun, sound_of(outcome)
    report(f"Hibari: {len(sound) / SAMPLE_RATE_HZ:.1f} s of speech took {took_s:.2f} s")
    assert took_s < len(sound) / SAMPLE_RATE_HZ
    assert len(outcome.emissions) == 2  # an abbreviation does not end a sentence
    with one_thread():
        transcript = Whisper().run(TranscriptionRequest(AudioInput(sound, SAMPLE_RATE_HZ))).result.text
    assert word_error_rate(TEXT.replace("Dr.", "Doctor"), transcript.replace("Dr.", "Doctor")) <= 0.2


@pytest.mark.slow
def test_the_seed_determines_the_audio_under_any_schedule(model):
    parity(model, SpeechRequest(TEXT, seed=-5), schedules=4)
    first, second = (sound_of(model.run(SpeechRequest("Good morning.", seed=seed))) for seed in (1, 2))
    assert first.shape == second.shape
    assert not np.array_equal(first, second)


@pytest.mark.slow
def test_speed_and_unpronounceable_text(model):
    slow, plain, fast = (len(sound_of(model.run(SpeechRequest("Good morning.", speed=speed)))) for speed in (0.5, 1, 2))
    assert slow > 1.6 * plain
    assert plain > 1.6 * fast
    assert model.run(SpeechRequest(" \n ")).emissions == []


@pytest.mark.parametrize("options", [{"voice": "emma"}, {"instructions": "Whisper."}, {"language": "fr"}])
def test_unsupported_requests_are_rejected(options):
    with pytest.raises(NotImplementedError, match="in the voice `heart`"):
        Hibari().run(SpeechRequest("Hello.", **options))


def test_the_voice_is_listed():
    assert Hibari().voices() == ("heart",)
