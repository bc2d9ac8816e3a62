"""Words of a transcript with their time ranges, from timed tokens.

Tokens are grouped as in openai-whisper: at spaces, or at characters in languages that are written without spaces;
punctuation belongs to the word next to it. Token times, which are computed in `alignment`, are some 0.1 s late. So each
edge of a word moves to the quietest moment near it, and silence at the edges is cut.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from mstar.models.whisper.tokenizer import WhisperTokenizer
from mstar.requests import AudioInput, Segment

LANGUAGES_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
_OPENING = "\"'“¿([{-"
"""Punctuation that belongs to the following word."""
_CLOSING = "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the word before."""
_SENTENCE_ENDS = ".。!！?？"
_UNKNOWN = "\ufffd"
"""Replacement character: the text of a token that is a part of a character."""
_MAX_TYPICAL_WORD_S = 0.7
"""Upper bound of the median word duration."""
_FRAMES_PER_S = 100
"""Power frames per second."""
_FRAMES_BEFORE = 14
_FRAMES_AFTER = 4
"""Range of the quietest moment around an edge."""
_QUIET_POWER_RATIO = 0.003
"""Maximum power of silence, relative to the mean power."""
_MIN_SILENCE_FRAMES = 8
"""Minimum frames of silence at the edge of a word. Closed consonants are silent for a shorter time."""

TimedToken = tuple[int, float, float]
"""A text token with its start and end in seconds."""


def group_words(timed: Sequence[TimedToken], tokenizer: WhisperTokenizer, language: str) -> list[Segment]:
    """Group timed tokens to words. The texts of all words join to the text of the tokens."""
    units = list(_split_characters(timed, tokenizer))
    words = units if language in LANGUAGES_WITHOUT_SPACES else _join_at_spaces(units)
    return _keep_order(_attach_punctuation(_shorten_at_sentence_ends(words)))


def place_edges(words: Sequence[Segment], sound: AudioInput) -> list[Segment]:
    """Move the edges of words to the quietest moments near them, and cut silence."""
    step = sound.rate // _FRAMES_PER_S
    frames = sound.samples[: len(sound.samples) // step * step].reshape(-1, step)
    if not words or not len(frames):
        return list(words)
    power = (frames**2).mean(axis=1)
    smooth = power.copy()
    smooth[1:-1] = (power[:-2] + power[1:-1] + power[2:]) / 3
    placed = [_place(word, smooth, is_first=not number) for number, word in enumerate(words)]
    is_loud = power > _QUIET_POWER_RATIO * power.mean()
    return _keep_order([_cut_silence(word, is_loud) for word in placed])


def _place(word: Segment, power: Any, *, is_first: bool) -> Segment:
    """Move both edges, unless nothing would be left. The first word starts with the audio, whatever its time is."""
    start = word.start if is_first else _quietest_near(word.start, power)
    end = _quietest_near(word.end, power)
    return Segment(start, end, word.text) if end > start else word


def _quietest_near(seconds: float, power: Any) -> float:
    frame = round(seconds * _FRAMES_PER_S)
    first = max(0, frame - _FRAMES_BEFORE)
    near = power[first : frame + _FRAMES_AFTER + 1]
    return (first + int(near.argmin())) / _FRAMES_PER_S if len(near) else seconds


def _cut_silence(word: Segment, is_loud: Any) -> Segment:
    first, end = round(word.start * _FRAMES_PER_S), round(word.end * _FRAMES_PER_S)
    loud = is_loud[first:end].nonzero()[0].tolist()
    if not loud:
        return word
    before, after = loud[0], end - first - 1 - loud[-1]
    start = (first + before) / _FRAMES_PER_S if before >= _MIN_SILENCE_FRAMES else word.start
    stop = (end - after) / _FRAMES_PER_S if after >= _MIN_SILENCE_FRAMES else word.end
    return Segment(start, stop, word.text)


def _split_characters(timed: Sequence[TimedToken], tokenizer: WhisperTokenizer) -> Iterator[Segment]:
    """Split into the shortest runs of tokens that are whole characters."""
    begin = 0
    for end in range(1, len(timed) + 1):
        text = tokenizer.detokenize([token for token, _, _ in timed[begin:end]])
        if _UNKNOWN not in text or end == len(timed):
            yield Segment(timed[begin][1], timed[end - 1][2], text)
            begin = end


def _join_at_spaces(units: Sequence[Segment]) -> list[Segment]:
    """Join what follows a word without a space to it, except punctuation."""
    words = list[Segment]()
    for unit in units:
        is_new = not words or unit.text.startswith(" ") or unit.text.strip() in string.punctuation
        words.append(unit) if is_new else _append(words, unit)
    return words


def _append(words: list[Segment], unit: Segment) -> None:
    words[-1] = Segment(words[-1].start, unit.end, words[-1].text + unit.text)


def _shorten_at_sentence_ends(words: list[Segment]) -> list[Segment]:
    """Limit words at sentence ends to twice the typical duration: the pause between the sentences is in one of them."""
    durations = [word.end - word.start for word in words if word.end > word.start]
    longest = 2 * min(_MAX_TYPICAL_WORD_S, median(durations)) if durations else 0.0
    result = words[:1]
    for before, word in pairwise(words):
        start, end = word.start, word.end
        if end - start > longest:
            if word.text in _SENTENCE_ENDS:
                end = start + longest
            elif before.text in _SENTENCE_ENDS:
                start = end - longest
        result.append(Segment(start, end, word.text))
    return result


def _attach_punctuation(words: Sequence[Segment]) -> list[Segment]:
    """Join punctuation to the word that it belongs to. Its own time range does not count."""
    result, opening = list[Segment](), ""
    for word in words:
        if word.text.startswith(" ") and word.text.strip() in _OPENING and word.text.strip():
            opening += word.text
        elif result and not opening and not result[-1].text.endswith(" ") and word.text in _CLOSING:
            result[-1] = Segment(result[-1].start, result[-1].end, result[-1].text + word.text)
        else:
            result.append(Segment(word.start, word.end, opening + word.text))
            opening = ""
    if opening and result:
        result[-1] = Segment(result[-1].start, result[-1].end, result[-1].text + opening)
    return result


def _keep_order(words: Sequence[Segment]) -> list[Segment]:
    """Make times monotonic: neighboring chunks can overlap by some frames."""
    result, last = list[Segment](), 0.0
    for word in words:
        start = max(word.start, last)
        last = max(word.end, start)
        result.append(Segment(round(start, 2), round(last, 2), word.text))
    return result
