"""Checkpoint of a speech encoder with a CTC head: config, network, feature extractor and tokenizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mstar.errors import LoadError, format_names
from mstar.nn.audio.ctc import SAMPLE_RATE_HZ, CtcCheckpoint

MAX_AUDIO_S = 120.0
"""Attention needs memory for the square of its length."""
ARCHITECTURES = (
    "Wav2Vec2ForCTC",
    "HubertForCTC",
    "WavLMForCTC",
    "UniSpeechForCTC",
    "UniSpeechSatForCTC",
    "Data2VecAudioForCTC",
    "Wav2Vec2ConformerForCTC",
    "SEWForCTC",
    "SEWDForCTC",
)
"""Networks that read raw audio, and write one token per step of their convolutions."""


class Checkpoint(CtcCheckpoint):
    """Folder with config.json, safetensors, vocab.json and preprocessor_config.json."""

    kind = "a speech model with a CTC head"

    def check_config(self, file: Path, config: Mapping[str, Any]) -> None:
        """Raise LoadError for other architectures, and for adapter layers."""
        if (names := self.architectures(config))[0] not in ARCHITECTURES:
            problem = f"{file} has {', '.join(names)}, expected one of {format_names(ARCHITECTURES)}"
            raise LoadError(f"{problem}\n  fix: use a checkpoint that was trained for transcription with CTC")
        if config.get("add_adapter"):
            problem = f"{file}: add_adapter is set, and the times of words would be wrong"
            raise LoadError(f"{problem}\n  fix: use a checkpoint without adapter layers after its encoder")

    @property
    def token_s(self) -> float:
        """Seconds between two outputs of the network."""
        return math.prod(self.config["conv_stride"]) / SAMPLE_RATE_HZ

    @property
    def min_audio_s(self) -> float:
        """Minimum seconds of audio: those that give one output."""
        samples = 1
        for kernel, stride in zip(
            reversed(self.config["conv_kernel"]), reversed(self.config["conv_stride"]), strict=True
        ):
            samples = (samples - 1) * stride + kernel
        return samples / SAMPLE_RATE_HZ

    @property
    def max_audio_s(self) -> float:
        """Maximum seconds of audio."""
        return MAX_AUDIO_S

    def feature_extractor(self) -> Any:
        """Load the feature extractor, which normalizes samples. Raises LoadError if it has another sample rate."""
        from transformers import Wav2Vec2FeatureExtractor

        extractor = self.load_feature_extractor(Wav2Vec2FeatureExtractor)
        if extractor.sampling_rate != SAMPLE_RATE_HZ:
            problem = f"sampling_rate of the feature extractor is {extractor.sampling_rate}, expected {SAMPLE_RATE_HZ}"
            raise LoadError(f"{problem}\n  fix: use a checkpoint for audio at 16 kHz")
        return extractor

    def tokenizer(self) -> Any:
        """Load the tokenizer, whose padding token is the CTC blank."""
        from transformers import Wav2Vec2CTCTokenizer

        folder = self._weights.path("*.json")
        if not (folder / "vocab.json").is_file():
            raise LoadError(f"{folder / 'vocab.json'} is missing\n  fix: save the processor of the model there")
        return Wav2Vec2CTCTokenizer.from_pretrained(folder, local_files_only=True)
