"""Automatic speech recognition (ASR) with CTC in one pass: what networks with a CTC head have in common.

A family has a checkpoint, two components and a model: `processor` (features, text) and `ctc` (encoder with CTC head).
The likeliest token of each frame is the result, without a decoder and without a language model: a transcript is emitted
as a whole, and has one segment. It takes no prompt, does not translate, and does not sample.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from mstar.errors import LoadError, Unsupported
from mstar.nn.weights.sources import Weights
from mstar.requests import AudioInput, Transcript, TranscriptionRequest
from mstar.walk.component import Component
from mstar.walk.emissions import Text
from mstar.walk.model import Model, walk

SAMPLE_RATE_HZ = 16_000


class CtcCheckpoint:
    """Folder in the Hugging Face layout. No library is imported before something is loaded."""

    kind: ClassVar[str]
    """What a folder must contain, in error messages: "a Parakeet CTC model"."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    @property
    def token_s(self) -> float:
        """Seconds between two outputs of the network."""
        raise NotImplementedError

    @property
    def min_audio_s(self) -> float:
        """Minimum seconds of audio."""
        raise NotImplementedError

    @property
    def max_audio_s(self) -> float:
        """Maximum seconds of audio."""
        raise NotImplementedError

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json. Raises LoadError for other architectures."""
        file = self._weights.path("*.json") / "config.json"
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: use the folder of {self.kind}")
        config = json.loads(file.read_bytes())
        self.check_config(file, config)
        return config

    def check_config(self, file: Path, config: Mapping[str, Any]) -> None:
        """Raise LoadError for a network that the family does not have."""
        raise NotImplementedError

    @staticmethod
    def architectures(config: Mapping[str, Any]) -> list[str]:
        """Class names of the network."""
        return config.get("architectures") or ["no architecture"]

    def network(self) -> Any:
        """Load the network."""
        _ = self.config
        return self._weights.network()

    def feature_extractor(self) -> Any:
        """Load the feature extractor. Raises LoadError if it does not fit."""
        raise NotImplementedError

    def load_feature_extractor(self, extractor_class: Any) -> Any:
        """A feature extractor of this class of transformers."""
        folder = self._weights.path()
        try:
            return extractor_class.from_pretrained(folder, local_files_only=True)
        except OSError as error:
            fix = f"use the complete folder of {self.kind}, with preprocessor_config.json or processor_config.json"
            raise LoadError(f"{folder} has no configuration of a feature extractor\n  fix: {fix}") from error

    def tokenizer(self) -> Any:
        """Load the tokenizer."""
        return self._weights.tokenizer()


class CtcProcessor(Component):
    """Feature extractor and tokenizer of a checkpoint. `language` is the language of all its transcripts."""

    def __init__(self, checkpoint: CtcCheckpoint, language: str) -> None:
        self._checkpoint = checkpoint
        self._language = language

    def prepare(self) -> None:
        """Load the feature extractor and the tokenizer."""
        _ = self._feature_extractor, self._tokenizer

    @functools.cached_property
    def _feature_extractor(self) -> Any:
        return self._checkpoint.feature_extractor()

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return self._checkpoint.tokenizer()

    def features(self, sound: AudioInput) -> Any:
        """Op: input of the network."""
        raise NotImplementedError

    def transcript(self, tokens: Any, sound: AudioInput, has_words: bool) -> tuple[str, Transcript]:
        """Op: text of the likeliest token of each frame, by itself and as a transcript."""
        raise NotImplementedError


class CtcNetwork(Component):
    """Encoder and CTC head, the unmodified ones of transformers."""

    runs_on_device = True

    def __init__(self, checkpoint: CtcCheckpoint) -> None:
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @functools.cached_property
    def network(self) -> Any:
        """The loaded network, on the device of the component."""
        return self.on_device(self._checkpoint.network())

    def likeliest_tokens(self, features: Any) -> Any:
        """Op: the likeliest token of each output frame."""
        raise NotImplementedError


class CtcTranscription(Model):
    """Serves transcription requests. A checkpoint does not say which `language` it has."""

    processor: CtcProcessor
    ctc: CtcNetwork

    def __init__(self, checkpoint: CtcCheckpoint, language: str) -> None:
        self.checkpoint = checkpoint
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
                f"this model transcribes speech in {self.language!r}, without translation, prompt and temperature\n"
                "  fix: leave them out, and send another language to a model that has it"
            )
        seconds = len(request.audio.samples) / request.audio.rate
        if seconds > self.checkpoint.max_audio_s:
            problem = f"the audio has {seconds:.1f} s, the limit of this model is {self.checkpoint.max_audio_s:g} s"
            raise Unsupported(f"{problem}\n  fix: split it at a pause, and send the parts")
        if seconds < self.checkpoint.min_audio_s:
            problem = f"the audio has {seconds:.4f} s, the minimum is {self.checkpoint.min_audio_s:g} s"
            raise Unsupported(f"{problem}\n  fix: send more audio")
