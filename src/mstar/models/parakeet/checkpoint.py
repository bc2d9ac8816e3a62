"""Parakeet CTC checkpoint in the Hugging Face layout: config, network, feature extractor and tokenizer.

The transducers RNN-T and TDT are other architectures, and are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mstar.errors import LoadError
from mstar.nn.audio.ctc import SAMPLE_RATE_HZ, CtcCheckpoint

HOP_SAMPLES = 160
"""Samples between two frames of the spectrogram."""
_ARCHITECTURE = "ParakeetForCTC"


class Checkpoint(CtcCheckpoint):
    """Folder with config.json, safetensors, tokenizer.json and the configuration of the feature extractor."""

    kind = "a Parakeet CTC model"

    def check_config(self, file: Path, config: Mapping[str, Any]) -> None:
        """Raise LoadError for other architectures."""
        if (names := self.architectures(config)) != [_ARCHITECTURE]:
            problem = f"{file} has {', '.join(names)}, expected {_ARCHITECTURE}"
            raise LoadError(f"{problem}\n  fix: use a CTC checkpoint of Parakeet, for example nvidia/parakeet-ctc-1.1b")

    @property
    def blank(self) -> int:
        """Token id of the CTC blank."""
        return self.config["pad_token_id"]

    @property
    def token_s(self) -> float:
        """Seconds between two outputs of the network."""
        return self.config["encoder_config"]["subsampling_factor"] * HOP_SAMPLES / SAMPLE_RATE_HZ

    @property
    def min_audio_s(self) -> float:
        """Minimum seconds of audio: features are normalized over two frames or more."""
        return 0.02

    @property
    def max_audio_s(self) -> float:
        """Maximum seconds of audio: attention has no more positions."""
        return self.config["encoder_config"]["max_position_embeddings"] * self.token_s

    def feature_extractor(self) -> Any:
        """Load the feature extractor. Raises LoadError if it has another sample rate or hop."""
        from transformers import ParakeetFeatureExtractor

        extractor = self.load_feature_extractor(ParakeetFeatureExtractor)
        actual, expected = (extractor.sampling_rate, extractor.hop_length), (SAMPLE_RATE_HZ, HOP_SAMPLES)
        if actual != expected:
            problem = f"sampling_rate and hop_length of the feature extractor are {actual}, expected {expected}"
            raise LoadError(f"{problem}\n  fix: use the preprocessor_config.json of Parakeet")
        return extractor
