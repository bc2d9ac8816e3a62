"""Hibari with its real weights: what it says is understood, sooner than it is heard."""

import time

import numpy as np
import pytest

from mstar.asks import Sound, Speech, Transcription
from mstar.models.voice.speaker import RATE, Hibari
from mstar.models.voice.whisper import Whisper
from mstar.testing.parity import parity
from tests.models.parts import misheard, one_thread

TEXT = "The weather is fine today, and we are going to the beach. Dr. Miller paid 12 dollars for three books."


def sound_of(outcome):
    return np.concatenate([emission.value for emission in outcome.emissions])


@pytest.fixture(scope="module")
def model():
    made = Hibari()
    made.speaker.prepare()
    return made


@pytest.mark.slow
def test_it_is_understood(model, report):
    begun = time.process_time()
    outcome = model.run(Speech(TEXT))
    took_s, sound = time.process_time() - begun, sound_of(outcome)
    report(f"Hibari: {len(sound) / RATE:.1f} s of speech took {took_s:.2f} s")
    assert took_s < len(sound) / RATE
    assert len(outcome.emissions) == 2  # a title ends no sentence
    with one_thread():
        heard = Whisper().run(Transcription(Sound(sound, RATE))).result.text
    assert misheard(TEXT.replace("Dr.", "Doctor"), heard.replace("Dr.", "Doctor")) <= 0.2


@pytest.mark.slow
def test_a_seed_gives_a_sound_however_it_is_served(model):
    parity(model, Speech(TEXT, seed=-5), schedules=4)
    first, second = (sound_of(model.run(Speech("Good morning.", seed=seed))) for seed in (1, 2))
    assert first.shape == second.shape
    assert not np.array_equal(first, second)


@pytest.mark.slow
def test_speed_and_what_cannot_be_said(model):
    slow, plain, fast = (len(sound_of(model.run(Speech("Good morning.", speed=speed)))) for speed in (0.5, 1, 2))
    assert slow > 1.6 * plain
    assert plain > 1.6 * fast
    assert model.run(Speech(" \n ")).emissions == []


@pytest.mark.parametrize("wish", [{"voice": "emma"}, {"instructions": "Whisper."}, {"language": "fr"}])
def test_what_it_does_not_do_is_refused(wish):
    with pytest.raises(NotImplementedError, match="in the voice `heart`"):
        Hibari().run(Speech("Hello.", **wish))


def test_it_names_its_voice():
    assert Hibari().voices() == ("heart",)
