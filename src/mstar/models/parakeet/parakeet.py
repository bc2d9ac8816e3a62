"""Parakeet CTC: automatic speech recognition (ASR) in one pass of a Fast Conformer, with the times of words.

Components: `processor` (features, text) and `ctc` (encoder with CTC head). The likeliest token of each 80 ms is the
result, without a decoder: a transcript is emitted as a whole, and has one segment. Audio can be as long as the
positions of the checkpoint: 400 s for the published ones. It takes no prompt, does not translate, and does not sample.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from mstar import Model, Text, walk
from mstar.errors import Unsupported
from mstar.models.parakeet.checkpoint import SAMPLE_RATE_HZ, Checkpoint
from mstar.models.parakeet.ctc_network import CtcNetwork
from mstar.models.parakeet.processor import Processor
from mstar.nn.weights.sources import Weights
from mstar.requests import AudioInput, Transcript, TranscriptionRequest

_MIN_AUDIO_S = 0.02
"""Minimum seconds of audio: features are normalized over two frames or more."""


class Parakeet(Model):
    """Serves transcription requests.

    `weights` is a folder in the Hugging Face layout, or `hub:NAME`. A checkpoint does not say which `language` it has;
    the default is English.
    """

    def __init__(self, weights: str = "hub:nvidia/parakeet-ctc-1.1b", *, language: str = "en") -> None:
        self.checkpoint = Checkpoint(Weights(weights))
        self.processor = Processor(self.checkpoint, language)
        self.ctc = CtcNetwork(self.checkpoint)
        self.language = language

    @walk
    def transcribe(self, sound: AudioInput, has_words: bool) -> Generator[Text, None, Any]:
        """Transcribe audio in one pass."""
        tokens = self.ctc.likeliest_tokens(self.processor.features(sound))
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
                f"this Parakeet transcribes speech in {self.language!r}, without translation, prompt and temperature\n"
                "  fix: leave them out, and send another language to a model that has it"
            )
        seconds, limit = len(request.audio.samples) / request.audio.rate, self.checkpoint.max_audio_s
        if seconds > limit:
            problem = f"the audio has {seconds:.1f} s, the limit of this Parakeet is {limit:g} s"
            raise Unsupported(f"{problem}\n  fix: split it at a pause, and send the parts")
        if seconds < _MIN_AUDIO_S:
            problem = f"the audio has {seconds:.3f} s, the minimum is {_MIN_AUDIO_S:g} s"
            raise Unsupported(f"{problem}\n  fix: send more audio")
