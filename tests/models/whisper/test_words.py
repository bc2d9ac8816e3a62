"""Tests of words from timed tokens: grouping, punctuation, and silence at the edges."""

import numpy as np
import pytest

from mstar.models.whisper.words import group_words, place_edges
from mstar.requests import AudioInput, Segment


class Pieces:
    """Tokenizer whose tokens are the indices of these byte strings."""

    def __init__(self, *pieces):
        self.pieces = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]

    def detokenize(self, tokens):
        return b"".join(self.pieces[token] for token in tokens).decode(errors="replace")


def grouped(*pieces, language="en", times=None):
    times = times or range(len(pieces) + 1)
    timed = [(index, times[index], times[index + 1]) for index in range(len(pieces))]
    return [(word.text, word.start, word.end) for word in group_words(timed, Pieces(*pieces), language)]


def test_tokens_are_joined_at_spaces_and_punctuation_to_words():
    assert grouped(" Good", " mor", "ning", ",", ' "', "sir", '"', "!") == [
        (" Good", 0, 1),
        (" morning,", 1, 3),
        (' "sir"!', 4, 6),
    ]
    assert grouped(" don", "'t", " stop") == [(" don't", 0, 2), (" stop", 2, 3)]
    assert grouped() == []


def test_languages_without_spaces_are_split_at_characters():
    first, second = "日".encode(), "本".encode()
    assert grouped(first[:1], first[1:], second, language="ja") == [("日", 0, 2), ("本", 2, 3)]
    assert grouped(first[:1], first[1:], second, language="en") == [("日本", 0, 3)]
    assert grouped(first[:1]) == [("\ufffd", 0, 1)], "a transcript that ends inside a character"


def test_a_pause_between_sentences_belongs_to_no_word():
    words = grouped(" one", ".", " two", " three", times=[0, 0.4, 3.0, 3.4, 3.8])
    assert words == [(" one.", 0, 0.4), (" two", 3.0, 3.4), (" three", 3.4, 3.8)]
    words = grouped(" one", ".", " two", " three", times=[0, 0.4, 0.5, 3.4, 3.8])
    assert words[1] == (" two", 2.6, 3.4), "twice the typical duration"


def test_times_never_decrease():
    timed = [(0, 1.0, 2.0), (1, 1.8, 1.9), (2, 2.5, 3.0)]
    words = group_words(timed, Pieces(" a", " b", " c"), "en")
    assert [(word.start, word.end) for word in words] == [(1, 2), (2, 2), (2.5, 3)]


@pytest.mark.parametrize("rate", [8000, 16_000, 44_100])
def test_edges_of_words_are_placed_in_the_audio(rate):
    at = np.arange(3 * rate) / rate
    samples = np.sin(2 * np.pi * 300 * at).astype(np.float32)
    for start, end in ((0, 0.5), (1.0, 1.4), (2.3, 2.33)):
        samples[(at >= start) & (at < end)] = 0
    words = [Segment(0.0, 0.8, " a"), Segment(0.8, 1.3, " b"), Segment(1.3, 2.4, " c"), Segment(2.4, 3, " d")]
    placed = [(word.start, word.end) for word in place_edges(words, AudioInput(samples, rate))]
    assert placed[0][0] == pytest.approx(0.5, abs=0.01), "silence before the first word"
    assert placed[1][1] == pytest.approx(1.0, abs=0.01), "a pause after a word"
    assert placed[2][0] == pytest.approx(1.4, abs=0.01), "a pause before a word"
    assert placed[2][1] == placed[3][0] == pytest.approx(2.31, abs=0.02), "a short dip between two words"
    assert place_edges(words, AudioInput(np.zeros(0, np.float32), rate)) == words


def test_short_words_do_not_vanish():
    samples = np.ones(16_000, np.float32)
    samples[8000:8160] = 0.5
    words = [Segment(0, 0.52, " a"), Segment(0.52, 0.56, " b"), Segment(0.56, 1, " c")]
    placed = place_edges(words, AudioInput(samples, 16_000))
    assert [(word.start, word.end) for word in placed] == [(0, 0.49), (0.52, 0.56), (0.56, 0.86)]
