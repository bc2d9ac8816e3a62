"""Tests of captions: by segment, and in short cues of whole words."""

import re

from mstar.requests import Segment, Transcript
from mstar.server.openai.captions import MAX_CUE_LINES, MAX_CUE_S, MAX_LINE_CHARS, to_bare_word, to_srt, to_vtt

TEXT = (
    " It would take weeks to repair everything, but they had done it before, and they would do it again, as always."
    " Nobody had been hurt."
)


def words(text, seconds=0.3, start=0.0):
    return tuple(
        Segment(round(start + seconds * number, 3), round(start + seconds * (number + 1), 3), f" {word}")
        for number, word in enumerate(text.split())
    )


def transcript(parts):
    return Transcript("", (Segment(0, 60, "everything"),), "en", 60.0, parts)


def cues(parts):
    """Cues of the SRT text, as (start, end, lines)."""
    actual = re.findall(r"\d+\n(\S+) --> (\S+)\n((?:.+\n)+)", to_srt(transcript(parts)))
    return [(start, end, text.splitlines()) for start, end, text in actual]


def test_a_segment_is_a_cue_without_words():
    assert to_srt(transcript(None)) == "1\n00:00:00,000 --> 00:01:00,000\neverything\n"
    assert to_vtt(transcript(None)) == "WEBVTT\n\n00:00:00.000 --> 00:01:00.000\neverything\n"


def test_long_text_is_split_into_cues_of_whole_words():
    actual = cues(words(TEXT))
    assert actual == [
        ("00:00:00,000", "00:00:04,500", [
            "It would take weeks to repair everything,",
            "but they had done it before, and they",
        ]),
        ("00:00:04,500", "00:00:06,300", ["would do it again, as always."]),
        ("00:00:06,300", "00:00:07,500", ["Nobody had been hurt."]),
    ]  # fmt: skip
    assert all(len(lines) <= MAX_CUE_LINES and max(map(len, lines)) <= MAX_LINE_CHARS for _, _, lines in actual)
    assert to_vtt(transcript(words(TEXT))).count(" --> ") == 3


def test_pauses_and_slow_speech_end_a_cue():
    assert len(cues((*words("one two"), *words("three", start=3)))) == 2
    slow = cues(words("one two three four five six seven eight nine ten", seconds=1.0))
    assert [lines for _, _, lines in slow] == [["one two three four five six seven"], ["eight nine ten"]]
    assert MAX_CUE_S == 7


def test_words_longer_than_a_line_are_not_broken():
    long = "a" * 50
    assert [lines for _, _, lines in cues(words(f"so {long} is long"))] == [["so", long], ["is long"]]
    assert cues(()) == []


def test_bare_words():
    assert [to_bare_word(text) for text in (' "Don\'t!"', " it's", " —", " 3.5%", "日。")] == [
        "Don't",
        "it's",
        "",
        "3.5",
        "日",
    ]
