"""Captions of a transcript: SubRip (SRT) and WebVTT.

A cue is a segment. If the transcript has word times, a cue is instead at most two lines of words, and starts and ends
with its words: players do not wrap or split cues well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mstar.requests import Segment, Transcript

MAX_LINE_CHARS = 42
"""Maximum characters of a caption line, as broadcasters and streaming services ask for."""
MAX_CUE_LINES = 2
"""Maximum lines of a cue."""
MAX_CUE_S = 7.0
"""Maximum seconds of a cue."""
MAX_PAUSE_S = 1.0
"""Maximum seconds of silence in a cue."""


def to_srt(transcript: Transcript) -> str:
    """SubRip captions."""
    blocks = [
        f"{number}\n{_format_timestamp(cue.start, ',')} --> {_format_timestamp(cue.end, ',')}\n{cue.text.strip()}\n"
        for number, cue in enumerate(_cues(transcript), 1)
    ]
    return "\n".join(blocks)


def to_vtt(transcript: Transcript) -> str:
    """WebVTT captions."""
    blocks = [
        f"{_format_timestamp(cue.start, '.')} --> {_format_timestamp(cue.end, '.')}\n{cue.text.strip()}\n"
        for cue in _cues(transcript)
    ]
    return "\n".join(["WEBVTT\n", *blocks])


def to_bare_word(text: str) -> str:
    """A word without the space and the punctuation around it."""
    characters = [index for index, character in enumerate(text) if character.isalnum()]
    return text[characters[0] : characters[-1] + 1] if characters else ""


def _cues(transcript: Transcript) -> Sequence[Segment]:
    return transcript.segments if transcript.words is None else list(_group_cues(transcript.words))


def _group_cues(words: Sequence[Segment]) -> Iterator[Segment]:
    """Group words to cues. A sentence end or a long pause ends a cue."""
    cue = list[Segment]()
    for word in words:
        if cue and _is_cue_over(cue, word):
            yield Segment(cue[0].start, cue[-1].end, "\n".join(_wrap(cue)))
            cue = []
        cue.append(word)
    if cue:
        yield Segment(cue[0].start, cue[-1].end, "\n".join(_wrap(cue)))


def _is_cue_over(cue: Sequence[Segment], word: Segment) -> bool:
    last = cue[-1]
    is_sentence_over = last.text.rstrip().endswith((".", "!", "?", "。", "！", "？"))
    is_long = word.end - cue[0].start > MAX_CUE_S or word.start - last.end > MAX_PAUSE_S
    return is_sentence_over or is_long or len(_wrap([*cue, word])) > MAX_CUE_LINES


def _wrap(words: Sequence[Segment]) -> list[str]:
    """Break text into lines between words. A word that is longer than a line has its own."""
    lines = [""]
    for word in words:
        if lines[-1] and len((lines[-1] + word.text).strip()) > MAX_LINE_CHARS:
            lines.append("")
        lines[-1] += word.text
    return [line.strip() for line in lines]


def _format_timestamp(seconds: float, separator: str) -> str:
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{separator}{milliseconds:03}"
