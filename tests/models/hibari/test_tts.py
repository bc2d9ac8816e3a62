"""Hibari with its real weights: what it says is understood, sooner than it is heard."""

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
def test_it_is_understood(model, report):
    begun = time.process_time()
    outcome = model.run(SpeechRequest(TEXT))
    took_s, sound = time.process_time() - begun, sound_of(outcome)
    report(f"Hibari: {len(sound) / SAMPLE_RATE_HZ:.1f} s of speech took {took_s:.2f} s")
    assert took_s < len(sound) / SAMPLE_RATE_HZ
    assert len(outcome.emissions) == 2  # a title ends no sentence
    with one_thread():
        heard = Whisper().run(TranscriptionRequest(AudioInput(sound, SAMPLE_RATE_HZ))).result.text
    assert word_error_rate(TEXT.replace("Dr.", "Doctor"), heard.replace("Dr.", "Doctor")) <= 0.2


@pytest.mark.slow
def test_a_seed_gives_a_sound_however_it_is_served(model):
    parity(model, SpeechRequest(TEXT, seed=-5), schedules=4)
    first, second = (sound_of(model.run(SpeechRequest("Good morning.", seed=seed))) for seed in (1, 2))
    assert first.shape == second.shape
    assert not np.array_equal(first, second)


@pytest.mark.slow
def test_speed_and_what_cannot_be_said(model):
    slow, plain, fast = (len(sound_of(model.run(SpeechRequest("Good morning.", speed=speed)))) for speed in (0.5, 1, 2))
    assert slow > 1.6 * plain
    assert plain > 1.6 * fast
    assert model.run(SpeechRequest(" \n ")).emissions == []


@pytest.mark.parametrize("wish", [{"voice": "emma"}, {"instructions": "Whisper."}, {"language": "fr"}])
def test_what_it_does_not_do_is_refused(wish):
    with pytest.raises(NotImplementedError, match="in the voice `heart`"):
        Hibari().run(SpeechRequest("Hello.", **wish))


def test_it_names_its_voice():
    assert Hibari().voices() == ("heart",)
