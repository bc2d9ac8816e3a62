"""Checkpoint of a speech encoder with a CTC head in the Hugging Face layout: config, network, extractor and tokenizer.

No library is imported until a network, a feature extractor or a tokenizer is loaded.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from typing import Any

from mstar.errors import LoadError, format_names
from mstar.nn.weights.sources import Weights

SAMPLE_RATE_HZ = 16_000
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


class Checkpoint:
    """Folder with config.json, safetensors, vocab.json and preprocessor_config.json."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json. Raises LoadError for other architectures."""
        file = self._weights.path("*.json") / "config.json"
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: use the folder of a speech model with a CTC head")
        config = json.loads(file.read_bytes())
        names = config.get("architectures") or ["no architecture"]
        if names[0] not in ARCHITECTURES:
            problem = f"{file} has {', '.join(names)}, expected one of {format_names(ARCHITECTURES)}"
            raise LoadError(f"{problem}\n  fix: use a checkpoint that was trained for transcription with CTC")
        if config.get("add_adapter"):
            problem = f"{file}: add_adapter is set, and the times of words would be wrong"
            raise LoadError(f"{problem}\n  fix: use a checkpoint without adapter layers after its encoder")
        return config

    @property
    def token_s(self) -> float:
        """Seconds between two outputs of the network."""
        return math.prod(self.config["conv_stride"]) / SAMPLE_RATE_HZ

    @property
    def min_samples(self) -> int:
        """Minimum samples of audio: those that give one output."""
        samples = 1
        for kernel, stride in zip(
            reversed(self.config["conv_kernel"]), reversed(self.config["conv_stride"]), strict=True
        ):
            samples = (samples - 1) * stride + kernel
        return samples

    def network(self) -> Any:
        """Load the network."""
        _ = self.config
        return self._weights.network()

    def feature_extractor(self) -> Any:
        """Load the feature extractor, which normalizes samples. Raises LoadError if it has another sample rate."""
        from transformers import Wav2Vec2FeatureExtractor

        folder = self._weights.path()
        try:
            extractor: Any = Wav2Vec2FeatureExtractor.from_pretrained(folder, local_files_only=True)
        except OSError as error:
            fix = "use a complete folder, with preprocessor_config.json or processor_config.json"
            raise LoadError(f"{folder} has no configuration of a feature extractor\n  fix: {fix}") from error
        if extractor.sampling_rate != SAMPLE_RATE_HZ:
            problem = f"{folder}: sampling_rate is {extractor.sampling_rate}, expected {SAMPLE_RATE_HZ}"
            raise LoadError(f"{problem}\n  fix: use a checkpoint for audio at 16 kHz")
        return extractor

    def tokenizer(self) -> Any:
        """Load the tokenizer, whose padding token is the CTC blank."""
        from transformers import Wav2Vec2CTCTokenizer

        folder = self._weights.path("*.json")
        if not (folder / "vocab.json").is_file():
            raise LoadError(f"{folder / 'vocab.json'} is missing\n  fix: save the processor of the model there")
        return Wav2Vec2CTCTokenizer.from_pretrained(folder, local_files_only=True)
