"""Stitcher: a long sound in chunks, and what was written of each as one text.

It is cut where nobody speaks, and that silence is in no chunk. If somebody always speaks, chunks overlap, and the same
is heard twice. The longest run of tokens that both have then joins them, in its middle: the ends of a chunk, where a
word may be cut, are left out. Nothing is written here.
"""

from __future__ import annotations

import difflib
from itertools import groupby
from typing import Any

from mstar import Component, Int64, Tensor, op
from mstar.models.whisper.tokenizer import WhisperTokenizer
from mstar.models.whisper.whisper_asr import split_by_timestamps
from mstar.requests import AudioInput, Segment

TimedToken = tuple[float, float, int]
"""When a token was said, from when to when, and the token."""
_MIN_COMMON_TOKENS = 2
"""So many tokens both must have; fewer are alike by chance."""
_MAX_TOKENS_PER_S = 8
"""So many tokens are said in a second, at most."""
_FRAMES_PER_S = 50
"""In a second. How loud it is, is known of each."""
_MIN_PAUSE_FRAMES = 15
"""So many moments a pause has, or more."""
_PAUSE_POWER_RATIO = 0.01
"""A pause has at most so much of the sound's power."""
_PAUSE_MARGIN_FRAMES = 10
"""So many moments around a pause are heard: words begin and end softly."""


class ChunkMerger(Component):
    """Chunks of at most so many seconds, of which so many are heard again in the next if there is no pause."""

    def __init__(self, tokenizer: WhisperTokenizer, chunk_s: float, overlap_s: float) -> None:
        self._tokenizer = tokenizer
        self._chunk_s, self._overlap_s = chunk_s, overlap_s

    def prepare(self) -> None:
        """Load the words, and torch, of which tokens are: a worker that did so when the first come would be missed."""
        import torch as _torch  # noqa: F401

        self._tokenizer.detokenize(())

    @op
    def split(self, sound: AudioInput) -> tuple[list[AudioInput], list[Segment]]:
        """The chunks of a sound, and when each is heard."""
        rate, step = sound.rate, sound.rate // _FRAMES_PER_S
        moments = sound.samples[: len(sound.samples) // step * step].reshape(-1, step)
        ends = [(start * step, end * step) for start, end in self._chunk_spans((moments**2).mean(axis=1))]
        chunks = [AudioInput(sound.samples[start:end], rate) for start, end in ends]
        return chunks, [Segment(start / rate, end / rate, "") for start, end in ends]

    def _chunk_spans(self, frame_power: Any) -> list[tuple[int, int]]:
        """From which moment to which each chunk is: it ends at the last of the quietest pauses of its second half."""
        import numpy as np

        longest, overlap = round(self._chunk_s * _FRAMES_PER_S), round(self._overlap_s * _FRAMES_PER_S)
        pauses, quiet = (
            np.convolve(frame_power, np.full(_MIN_PAUSE_FRAMES, 1 / _MIN_PAUSE_FRAMES), "same"),
            _PAUSE_POWER_RATIO * frame_power.mean(),
        )
        loud = np.flatnonzero(frame_power > quiet)
        last = int(loud[-1]) + 1 if len(loud) else 0
        spans, at = list[tuple[int, int]](), 0
        while last - at > longest:
            late = pauses[at + longest // 2 : at + longest]
            middle = at + longest - 1 - int(late[::-1].argmin())
            if pauses[middle] > quiet:
                spans.append((at, at + longest))
                at += longest - overlap
                continue
            before, begun = loud[(loud >= at) & (loud < middle)], int(loud[loud >= middle][0])
            over = int(before[-1]) + 1 if len(before) else at
            if over > at:
                spans.append((at, min(over + _PAUSE_MARGIN_FRAMES, (over + begun) // 2)))
            at = max(begun - _PAUSE_MARGIN_FRAMES, (over + begun) // 2)
        return [*spans, (at, min(last + _PAUSE_MARGIN_FRAMES, len(frame_power)))]

    @op
    def join(
        self, chunk_tokens: list[list[Int64[Tensor, "1"]]], spans: list[Segment]
    ) -> tuple[list[int], int, list[Segment]]:
        """One text of what was written of each chunk: its tokens, how many there are, and its segments."""
        whole, heard = list[TimedToken](), 0.0
        for tokens, span in zip(chunk_tokens, spans, strict=True):
            found = split_by_timestamps(tokens, span, self._tokenizer.special_tokens.timestamp_begin)
            words = [(begin, end, token) for begin, end, said in found for token in said]
            whole = self._merge(whole, words, Segment(span.start, heard, ""))
            heard = span.end
        segments, last = list[Segment](), 0.0
        for (begin, end), said in groupby(whole, lambda word: word[:2]):
            text = self._tokenizer.detokenize([token for _, _, token in said])
            segments.append(Segment(max(begin, last), max(end, last), text))
            last = segments[-1].end
        return [token for _, _, token in whole], len(whole), segments

    def _merge(self, left: list[TimedToken], right: list[TimedToken], overlap: Segment) -> list[TimedToken]:
        """What was said before and after, of which both have heard what was said in a time."""
        most = round(self._overlap_s * _MAX_TOKENS_PER_S)
        first = max(len(left) - most, sum(1 for _, end, _ in left if end <= overlap.start))
        last = min(most, sum(1 for begin, _, _ in right if begin < overlap.end))
        twice = [token for _, _, token in left[first:]], [token for _, _, token in right[:last]]
        run = difflib.SequenceMatcher(None, *twice, autojunk=False).find_longest_match()
        if run.size >= _MIN_COMMON_TOKENS:
            return left[: first + run.a + run.size // 2] + right[run.b + run.size // 2 :]
        said = left[-1][1] if left else 0.0  # nothing was written twice, if it was heard
        return left + [word for word in right if word[0] + word[1] >= 2 * said]
