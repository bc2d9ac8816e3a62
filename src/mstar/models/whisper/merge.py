"""Chunk merging for long-form transcription: split audio at pauses, then merge the transcripts of the chunks.

Chunks are cut at pauses, and the pause belongs to no chunk. Without a pause, neighboring chunks overlap, and the
overlap is transcribed twice. The merge finds the longest common run of tokens and joins both transcripts in its middle,
because words at the edges of a chunk can be cut. The transcription itself is in `whisper_asr`.
"""

from __future__ import annotations

import difflib
from itertools import groupby, pairwise
from typing import Any

from mstar import Component, Int64, Tensor, op
from mstar.models.whisper.tokenizer import WhisperTokenizer
from mstar.models.whisper.whisper_asr import split_by_timestamps
from mstar.models.whisper.words import group_words, place_edges
from mstar.requests import AudioInput, Segment

TimedToken = tuple[float, float, int, float, float]
"""Start and end of its segment in seconds, the token, and its own start and end."""
_MIN_COMMON_TOKENS = 2
"""Minimum length of a common run. Shorter runs match by chance."""
_MAX_TOKENS_PER_S = 8
"""Maximum speech rate in tokens per second. Bounds the search for the overlap."""
_FRAMES_PER_S = 50
"""Power frames per second."""
_MIN_PAUSE_FRAMES = 15
"""Minimum length of a pause in frames."""
_PAUSE_POWER_RATIO = 0.01
"""Maximum power of a pause, relative to the mean power."""
_PAUSE_MARGIN_FRAMES = 10
"""Frames kept on each side of a pause, because words begin and end softly."""


class ChunkMerger(Component):
    """Splits audio into chunks of `chunk_s` seconds, and merges their transcripts.

    Chunks overlap by `overlap_s` seconds where there is no pause.
    """

    def __init__(self, tokenizer: WhisperTokenizer, chunk_s: float, overlap_s: float) -> None:
        self._tokenizer = tokenizer
        self._chunk_s, self._overlap_s = chunk_s, overlap_s

    def prepare(self) -> None:
        """Load the tokenizer, and import torch: an import during the first request would delay heartbeats."""
        import torch as _torch  # noqa: F401

        self._tokenizer.detokenize(())

    @op
    def split(self, sound: AudioInput) -> tuple[list[AudioInput], list[Segment]]:
        """Split audio into chunks, and return the time span of each."""
        rate, step = sound.rate, sound.rate // _FRAMES_PER_S
        frames = sound.samples[: len(sound.samples) // step * step].reshape(-1, step)
        spans = [(start * step, end * step) for start, end in self._chunk_spans((frames**2).mean(axis=1))]
        chunks = [AudioInput(sound.samples[start:end], rate) for start, end in spans]
        return chunks, [Segment(start / rate, end / rate, "") for start, end in spans]

    def _chunk_spans(self, frame_power: Any) -> list[tuple[int, int]]:
        """Return the frame range of each chunk. A chunk ends at the last of the quietest pauses of its second half."""
        import numpy as np

        max_frames, overlap = round(self._chunk_s * _FRAMES_PER_S), round(self._overlap_s * _FRAMES_PER_S)
        pauses, quiet = (
            np.convolve(frame_power, np.full(_MIN_PAUSE_FRAMES, 1 / _MIN_PAUSE_FRAMES), "same"),
            _PAUSE_POWER_RATIO * frame_power.mean(),
        )
        loud = np.flatnonzero(frame_power > quiet)
        last = int(loud[-1]) + 1 if len(loud) else 0
        spans, at = list[tuple[int, int]](), 0
        while last - at > max_frames:
            late = pauses[at + max_frames // 2 : at + max_frames]
            middle = at + max_frames - 1 - int(late[::-1].argmin())
            if pauses[middle] > quiet:
                spans.append((at, at + max_frames))
                at += max_frames - overlap
                continue
            before, resumes = loud[(loud >= at) & (loud < middle)], int(loud[loud >= middle][0])
            stops = int(before[-1]) + 1 if len(before) else at
            if stops > at:
                spans.append((at, min(stops + _PAUSE_MARGIN_FRAMES, (stops + resumes) // 2)))
            at = max(resumes - _PAUSE_MARGIN_FRAMES, (stops + resumes) // 2)
        return [*spans, (at, min(last + _PAUSE_MARGIN_FRAMES, len(frame_power)))]

    @op
    def join(
        self,
        chunk_tokens: list[list[Int64[Tensor, "1"]]],
        chunk_times: list[list[float]],
        spans: list[Segment],
        sound: AudioInput,
        language: str,
    ) -> tuple[list[int], int, list[Segment], list[Segment]]:
        """Merge the tokens of all chunks: tokens, their number, segments, and words if there are times of tokens."""
        merged, previous_end = list[TimedToken](), 0.0
        for tokens, times, span in zip(chunk_tokens, chunk_times, spans, strict=True):
            timed = split_by_timestamps(tokens, span, self._tokenizer.special_tokens.timestamp_begin)
            flat = [(begin, end, token) for begin, end, group in timed for token in group]
            own = pairwise(span.start + time for time in times) if times else [token[:2] for token in flat]
            chunk = [(*token, *its_own) for token, its_own in zip(flat, own, strict=True)]
            merged = self._merge(merged, chunk, Segment(span.start, previous_end, ""))
            previous_end = span.end
        segments, last = list[Segment](), 0.0
        for (begin, end), group in groupby(merged, lambda word: word[:2]):
            text = self._tokenizer.detokenize([word[2] for word in group])
            segments.append(Segment(max(begin, last), max(end, last), text))
            last = segments[-1].end
        own_times = [word[2:] for word in merged] if any(chunk_times) else []
        words = place_edges(group_words(own_times, self._tokenizer, language), sound)
        return [word[2] for word in merged], len(merged), segments, words

    def _merge(self, left: list[TimedToken], right: list[TimedToken], overlap: Segment) -> list[TimedToken]:
        """Join two transcripts that both cover the time span `overlap`."""
        max_tokens = round(self._overlap_s * _MAX_TOKENS_PER_S)
        first = max(len(left) - max_tokens, sum(1 for word in left if word[1] <= overlap.start))
        last = min(max_tokens, sum(1 for word in right if word[0] < overlap.end))
        common = [word[2] for word in left[first:]], [word[2] for word in right[:last]]
        run = difflib.SequenceMatcher(None, *common, autojunk=False).find_longest_match()
        if run.size >= _MIN_COMMON_TOKENS:
            return left[: first + run.a + run.size // 2] + right[run.b + run.size // 2 :]
        end_of_left = left[-1][1] if left else 0.0  # no common run: keep what lies mostly after the left transcript
        return left + [word for word in right if word[0] + word[1] >= 2 * end_of_left]
