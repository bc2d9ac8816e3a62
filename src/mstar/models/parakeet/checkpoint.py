"""Parakeet CTC checkpoint in the Hugging Face layout: config, network, feature extractor and tokenizer.

No library is imported until a network, a feature extractor or a tokenizer is loaded. The transducers RNN-T and TDT are
other architectures, and are rejected.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from mstar.errors import LoadError
from mstar.nn.weights.sources import Weights

SAMPLE_RATE_HZ = 16_000
HOP_SAMPLES = 160
"""Samples between two frames of the spectrogram."""
_ARCHITECTURE = "ParakeetForCTC"


class Checkpoint:
    """Folder with config.json, safetensors, tokenizer.json and the configuration of the feature extractor."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json. Raises LoadError for other architectures."""
        file = self._weights.path("*.json") / "config.json"
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: use the folder of a Parakeet CTC model")
        config = json.loads(file.read_bytes())
        names = config.get("architectures") or ["no architecture"]
        if names != [_ARCHITECTURE]:
            problem = f"{file} has {', '.join(names)}, expected {_ARCHITECTURE}"
            raise LoadError(f"{problem}\n  fix: use a CTC checkpoint of Parakeet, for example nvidia/parakeet-ctc-1.1b")
        return config

    @property
    def blank(self) -> int:
        """Token id of the CTC blank."""
        return self.config["pad_token_id"]

    @property
    def token_s(self) -> float:
        """Seconds between two outputs of the network."""
        return self.config["encoder_config"]["subsampling_factor"] * HOP_SAMPLES / SAMPLE_RATE_HZ

    @property
    def max_audio_s(self) -> float:
        """Maximum seconds of audio: attention has no more positions."""
        return self.config["encoder_config"]["max_position_embeddings"] * self.token_s

    def network(self) -> Any:
        """Load the network."""
        _ = self.config
        return self._weights.network()

    def feature_extractor(self) -> Any:
        """Load the feature extractor. Raises LoadError if it has another sample rate or hop."""
        from transformers import ParakeetFeatureExtractor

        folder = self._weights.path()
        try:
            extractor: Any = ParakeetFeatureExtractor.from_pretrained(folder, local_files_only=True)
        except OSError as error:
            fix = "use a complete Parakeet folder, with preprocessor_config.json or processor_config.json"
            raise LoadError(f"{folder} has no configuration of a feature extractor\n  fix: {fix}") from error
        actual, expected = (extractor.sampling_rate, extractor.hop_length), (SAMPLE_RATE_HZ, HOP_SAMPLES)
        if actual != expected:
            problem = f"{folder}: sampling_rate and hop_length are {actual}, expected {expected}"
            raise LoadError(f"{problem}\n  fix: use the preprocessor_config.json of Parakeet")
        return extractor

    def tokenizer(self) -> Any:
        """Load the tokenizer."""
        return self._weights.tokenizer()
