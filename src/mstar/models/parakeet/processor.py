"""Parakeet processor: audio to normalized log-mel features, and CTC output to text with the times of words.

The features are those of the library's extractor. Audio of any sample rate is resampled to 16 kHz.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from mstar import Float32, Int64, Tensor, op
from mstar.models.parakeet.checkpoint import Checkpoint
from mstar.nn.audio.ctc import SAMPLE_RATE_HZ, CtcProcessor
from mstar.nn.audio.resampling import resample
from mstar.requests import AudioInput, Segment, Transcript


class Processor(CtcProcessor):
    """Feature extractor and tokenizer of a checkpoint."""

    _checkpoint: Checkpoint

    @op
    def features(self, sound: AudioInput) -> Float32[Tensor, "F M"]:
        """Log-mel features of the audio, normalized over its length, without the frame that the library masks."""
        samples = resample(sound.samples, sound.rate, SAMPLE_RATE_HZ)
        inputs = self._feature_extractor([samples], sampling_rate=SAMPLE_RATE_HZ)
        return inputs["input_features"][0, : int(inputs["attention_mask"].sum())]

    @op
    def transcript(self, tokens: Int64[Tensor, "T"], sound: AudioInput, has_words: bool) -> tuple[str, Transcript]:
        """Text of the likeliest token of each frame, by itself and as a transcript."""
        seconds = len(sound.samples) / sound.rate
        runs = list(find_runs(tokens.tolist(), self._checkpoint.blank))
        text = self._tokenizer.decode([token for token, _, _ in runs])
        words = tuple(self._words(runs, seconds)) if has_words else None
        segments = (Segment(0.0, seconds, text),) if text else ()
        return text, Transcript(text, segments, self._language, seconds, words)

    def _words(self, runs: Sequence[tuple[int, int, int]], seconds: float) -> Iterator[Segment]:
        """Words from the first to the last frame of their tokens. Their texts join to the text of all tokens."""
        from tokenizers.decoders import DecodeStream

        stream, parts = DecodeStream(skip_special_tokens=True), list[tuple[str, int, int]]()
        for token, first, end in runs:
            part = stream.step(self._tokenizer, token)
            if part and (part[0].isspace() or not parts):
                parts.append((part, first, end))
            elif part:
                parts[-1] = parts[-1][0] + part, parts[-1][1], end
        step = self._checkpoint.token_s
        for text, first, end in parts:
            yield Segment(round(min(first * step, seconds), 2), round(min(end * step, seconds), 2), text)


def find_runs(tokens: Sequence[int], blank: int) -> Iterator[tuple[int, int, int]]:
    """Merge equal neighbors and drop blanks, as greedy CTC decoding does. Yields tokens with first and end frame."""
    end = 0
    for token, run in groupby(tokens):
        first, end = end, end + len(list(run))
        if token != blank:
            yield token, first, end
