"""The barge-in benchmark: what counts as played, and that a conversation is judged by it."""

import numpy as np
import pytest

from bench.speech.barge_in import _SENTENCE, Alignment, Turn
from mstar.models.hibari.tts import HibariTts, SpeechPosition
from mstar.requests import SpeechRequest

TEXT = "It is fine. We go out, today."


def test_sentences_end_where_those_of_the_model_do():
    assert _SENTENCE.split("One. Two: 3.5\n\nthree") == ["One.", " Two:", " 3.5\n\n", "three"]


@pytest.fixture(scope="module")
def spoken():
    tts, position = HibariTts(), SpeechPosition()
    parts = [tts.synthesize(sentence, SpeechRequest(""), 0, position) for sentence in _SENTENCE.split(TEXT)]
    turn = Turn(text=TEXT)
    turn.pcm += (np.concatenate([audio for audio, _ in parts]) * 32767).astype("<i2").tobytes()
    return tts, turn, [word for _, words in parts for word in words]


@pytest.mark.nightly
def test_the_words_of_the_played_samples_are_those_that_have_ended(spoken):
    tts, turn, words = spoken
    assert [word.word for word in words] == TEXT.split()
    for count, word in enumerate(words, 1):
        end_ms = round(word.end * 1000)
        kept = [Alignment(tts).played_text(turn, ms).split() for ms in (end_ms - 1, end_ms)]
        assert kept == [TEXT.split()[: count - 1], TEXT.split()[:count]]


@pytest.mark.nightly
def test_audio_that_is_not_that_of_the_text_is_noticed(spoken):
    tts, turn, _ = spoken
    other = Turn(text="It is cold. We stay at home.", pcm=turn.pcm)
    with pytest.raises(AssertionError, match="is not that which was played"):
        Alignment(tts).played_text(other, turn.played_ms)
