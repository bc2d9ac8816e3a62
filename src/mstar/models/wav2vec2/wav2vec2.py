"""Automatic speech recognition (ASR) with CTC on raw audio: wav2vec 2.0, HuBERT, WavLM and their variants.

Components: `processor` (normalized samples, text) and `ctc` (encoder with CTC head). The likeliest token of each frame
is the result, without a decoder and without a language model: a transcript is emitted as a whole, and has one segment.
It takes no prompt, does not translate, and does not sample.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from mstar import Model, Text, walk
from mstar.errors import Unsupported
from mstar.models.wav2vec2.checkpoint import SAMPLE_RATE_HZ, Checkpoint
from mstar.models.wav2vec2.ctc_network import CtcNetwork
from mstar.models.wav2vec2.processor import Processor
from mstar.nn.weights.sources import Weights
from mstar.requests import AudioInput, Transcript, TranscriptionRequest

MAX_AUDIO_S = 120.0
"""Maximum seconds of audio: attention needs memory for the square of its length."""


class Wav2Vec2(Model):
    """Serves transcription requests.

    `weights` is a folder in the Hugging Face layout, or `hub:NAME`. A checkpoint does not say which `language` it has;
    the default is English.
    """

    def __init__(self, weights: str = "hub:facebook/wav2vec2-base-960h", *, language: str = "en") -> None:
        self.checkpoint = Checkpoint(Weights(weights))
        self.processor = Processor(self.checkpoint, language)
        self.ctc = CtcNetwork(self.checkpoint)
        self.language = language

    @walk
    def transcribe(self, sound: AudioInput, has_words: bool) -> Generator[Text, None, Any]:
        """Transcribe audio in one pass."""
        tokens = self.ctc.likeliest_tokens(self.processor.samples(sound))
        text, transcript = self.processor.transcript(tokens, sound, has_words)
        yield Text(text)
        return transcript

    async def route(self, request: TranscriptionRequest) -> Transcript:
        """Transcribe, or reject what the checkpoint cannot do."""
        self._check(request)
        return await self.transcribe(request.audio, request.word_timestamps)

    def warmup_requests(self) -> Sequence[Any]:
        """One second of silence."""
        import numpy as np

        return [TranscriptionRequest(AudioInput(np.zeros(SAMPLE_RATE_HZ, np.float32), SAMPLE_RATE_HZ))]

    def _check(self, request: TranscriptionRequest) -> None:
        is_other = request.language.lower().partition("-")[0] not in ("", self.language)
        if request.is_translation or is_other or request.prompt or request.temperature:
            raise Unsupported(
                f"this model transcribes speech in {self.language!r}, without translation, prompt and temperature\n"
                "  fix: leave them out, and send another language to a model that has it"
            )
        seconds, shortest = len(request.audio.samples) / request.audio.rate, self.checkpoint.min_samples
        if seconds > MAX_AUDIO_S:
            problem = f"the audio has {seconds:.1f} s, the limit of this model is {MAX_AUDIO_S:g} s"
            raise Unsupported(f"{problem}\n  fix: split it at a pause, and send the parts")
        if seconds < shortest / SAMPLE_RATE_HZ:
            problem = f"the audio has {seconds:.3f} s, the minimum is {shortest / SAMPLE_RATE_HZ:.3f} s"
            raise Unsupported(f"{problem}\n  fix: send more audio")
