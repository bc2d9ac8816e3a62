"""Hibari with its published weights: its speech is intelligible, and faster than real time."""

import time

import hibari
import numpy as np
import pytest

from mstar.models.hibari.tts import SAMPLE_RATE_HZ, Hibari
from mstar.models.whisper.whisper import Whisper
from mstar.requests import AudioInput, SpeechRequest, TranscriptionRequest
from mstar.testing.parity import parity
from tests.models.audio_outputs import concat_audio
from tests.models.transcripts import one_thread, word_error_rate

TEXT = "The weather is fine today, and we are going to the beach. Dr. Miller paid 12 dollars for three books."


def sound_of(outcome):
    return concat_audio(outcome.emissions)


def words_of(outcome):
    return [word for one in outcome.emissions if type(one).__name__ == "WordTimestamps" for word in one.value]


@pytest.fixture(scope="module")
def model():
    made = Hibari()
    made.tts.prepare()
    return made


@pytest.mark.nightly
def test_speech_is_intelligible(model, report):
    begun = time.process_time()
    outcome = model.run(SpeechRequest(TEXT))
    took_s, sound = time.process_time() - begun, sound_of(outcome)
    report(f"Hibari: {len(sound) / SAMPLE_RATE_HZ:.1f} s of speech took {took_s:.2f} s")
    assert took_s < len(sound) / SAMPLE_RATE_HZ
    assert [type(one).__name__ for one in outcome.emissions] == ["WordTimestamps", "Audio"] * 2  # not after "Dr."
    with one_thread():
        transcript = Whisper().run(TranscriptionRequest(AudioInput(sound, SAMPLE_RATE_HZ))).result.text
    assert word_error_rate(TEXT.replace("Dr.", "Doctor"), transcript.replace("Dr.", "Doctor")) <= 0.2


@pytest.mark.nightly
def test_the_seed_determines_the_audio_under_any_schedule(model):
    parity(model, SpeechRequest(TEXT, seed=-5), schedules=4)
    first, second = (sound_of(model.run(SpeechRequest("Good morning.", seed=seed))) for seed in (1, 2))
    assert first.shape == second.shape
    assert not np.array_equal(first, second)


@pytest.mark.slow
def test_the_audio_is_that_of_the_package(model):
    package = hibari.Hibari()
    for step, emission in enumerate(one for one in model.run(SpeechRequest(TEXT, seed=4)).emissions if one.clock):
        noise = np.random.default_rng([4, step])
        expected = package.from_ids(package.ids(package.phonemize(TEXT)[step]), 1.0, noise)
        np.testing.assert_array_equal(emission.value, expected)


@pytest.mark.slow
def test_every_word_has_its_time(model):
    for text, speed in ((TEXT, 1.0), (f"  {TEXT}\n\n{TEXT} ", 1.5)):
        outcome = model.run(SpeechRequest(text, speed=speed))
        words = words_of(outcome)
        assert [word.word for word in words] == text.split()
        assert all(text[word.text_start : word.text_end] == word.word for word in words)
        times = [time for word in words for time in (word.start, word.end)]
        assert times == sorted(times)
        assert times[0] > 0
        assert times[-1] < len(sound_of(outcome)) / SAMPLE_RATE_HZ


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_recording_that_is_cut_where_a_word_ends_has_the_words_before(model, report):
    story = (
        "The lighthouse keeper woke early that morning. A storm had passed in the night, and the harbor was full of "
        "broken boats. By noon the sun had come out, and the children were back in school."
    )
    outcome = model.run(SpeechRequest(story))
    sound, words = sound_of(outcome), words_of(outcome)
    with one_thread():
        whisper, errors, total = Whisper(), 0, 0
        for count in range(6, len(words) + 1, 4):
            played = AudioInput(sound[: round(words[count - 1].end * SAMPLE_RATE_HZ)], SAMPLE_RATE_HZ)
            transcript = whisper.run(TranscriptionRequest(played)).result.text
            spoken = " ".join(word.word for word in words[:count])
            errors, total = errors + round(word_error_rate(spoken, transcript) * count), total + count
    report(f"Hibari: {errors} of {total} words wrong in recordings that were cut at the end of a word")
    assert errors <= 0.05 * total


@pytest.mark.nightly
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
