"""Processor of a speech model with a CTC head: audio to normalized samples, and CTC output to text with times of words.

Samples and text are those of the library's processor. Audio of any sample rate is resampled to 16 kHz.
"""

from __future__ import annotations

from mstar import Float32, Int64, Tensor, op
from mstar.models.wav2vec2.checkpoint import Checkpoint
from mstar.nn.audio.ctc import SAMPLE_RATE_HZ, CtcProcessor
from mstar.nn.audio.resampling import resample
from mstar.requests import AudioInput, Segment, Transcript


class Processor(CtcProcessor):
    """Feature extractor and tokenizer of a checkpoint."""

    _checkpoint: Checkpoint

    @op
    def features(self, sound: AudioInput) -> Float32[Tensor, "S"]:
        """Samples at 16 kHz, normalized over their length if the checkpoint does so."""
        import torch

        samples = resample(sound.samples, sound.rate, SAMPLE_RATE_HZ)
        normalized = self._feature_extractor(samples, sampling_rate=SAMPLE_RATE_HZ)["input_values"][0]
        return torch.from_numpy(normalized)

    @op
    def transcript(self, tokens: Int64[Tensor, "T"], sound: AudioInput, has_words: bool) -> tuple[str, Transcript]:
        """Text of the likeliest token of each frame, by itself and as a transcript."""
        seconds, step = len(sound.samples) / sound.rate, self._checkpoint.token_s
        decoded = self._tokenizer.decode(tokens.tolist(), output_word_offsets=True)
        words = tuple(
            Segment(
                round(min(int(word["start_offset"]) * step, seconds), 2),
                round(min(int(word["end_offset"]) * step, seconds), 2),
                f" {word['word']}" if number else word["word"],
            )
            for number, word in enumerate(decoded.word_offsets)
        )
        segments = (Segment(0.0, seconds, decoded.text),) if decoded.text else ()
        return decoded.text, Transcript(decoded.text, segments, self._language, seconds, words if has_words else None)
