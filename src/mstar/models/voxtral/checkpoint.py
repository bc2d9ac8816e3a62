"""Voxtral checkpoint in the Hugging Face layout: each part of the network is loaded by itself.

A worker that holds one part reads the tensors of that part only. No library is imported until a network, config or
tokenizer is loaded. The networks are those of transformers.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from mstar.errors import LoadError
from mstar.nn.lm.generation_config import read_default_sampling
from mstar.nn.weights.sources import Weights
from mstar.requests import Sampling

DEFAULT_WEIGHTS = "hub:mistralai/Voxtral-Mini-3B-2507"
PARTS: dict[str, dict[str, str]] = {
    "audio_encoder": {f"model.{name}": f"{name}." for name in ("audio_tower", "multi_modal_projector")},
    "lm": {"model.language_model": "language_model.model.", "lm_head": "language_model.lm_head."},
}
"""Modules of each part as transformers names them, and the prefixes of their tensors in the files."""
SAMPLE_RATE_HZ = 16_000
_FRAMES_PER_POSITION = 2
"""Frames of the spectrogram per position of the encoder: the stride of its convolutions."""


class Checkpoint:
    """Folder with config.json, safetensors, tokenizer, and audio preprocessing."""

    def __init__(self, weights: str) -> None:
        self._weights = Weights(weights)

    def network(self, part: str) -> Any:
        """Load the transformers model with only this part."""
        return self._weights.network(parts=PARTS[part])

    @functools.cached_property
    def config(self) -> Any:
        """The transformers config of the whole model."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self._weights.path("*.json"), local_files_only=True)

    @functools.cached_property
    def max_positions(self) -> int | None:
        """Context length in config.json, None if it is not there. Imports no library, so front ends can read it."""
        file = self._weights.path("*.json") / "config.json"
        config = json.loads(file.read_bytes()) if file.is_file() else {}
        return config.get("text_config", {}).get("max_position_embeddings")

    @functools.cached_property
    def default_sampling(self) -> Sampling | None:
        """Sampling parameters in generation_config.json, None if it is not there."""
        return read_default_sampling(self._weights.path("*.json"))

    @property
    def window_frames(self) -> int:
        """Frames of the spectrogram that the encoder reads at once: 30 s in the published checkpoints."""
        return self.config.audio_config.max_source_positions * _FRAMES_PER_POSITION

    @property
    def window_tokens(self) -> int:
        """Positions of a window in a prompt: the projector groups several positions of the encoder."""
        audio = self.config.audio_config
        return audio.max_source_positions * audio.hidden_size // audio.intermediate_size

    @functools.cached_property
    def feature_extractor(self) -> Any:
        """Feature extractor for log-mel spectrograms. Raises LoadError for one of another sample rate."""
        from transformers import WhisperFeatureExtractor

        folder = self._weights.path("*.json")
        extractor = WhisperFeatureExtractor.from_pretrained(folder, local_files_only=True)
        if extractor.sampling_rate != SAMPLE_RATE_HZ:
            problem = f"{folder}: the feature extractor reads {extractor.sampling_rate} Hz, expected {SAMPLE_RATE_HZ}"
            raise LoadError(f"{problem}\n  fix: use the preprocessor_config.json of Voxtral")
        return extractor

    @functools.cached_property
    def tokenizer(self) -> Any:
        """Tokenizer that never parses special tokens in text, of tekken.json or tokenizer.json."""
        file = self._weights.path("*.json") / "tekken.json"
        if file.is_file():
            from transformers.integrations.mistral.tokenizer import MistralConverter

            tokenizer: Any = MistralConverter(str(file)).converted()
        else:
            tokenizer = self._weights.tokenizer()
        tokenizer.encode_special_tokens = True
        return tokenizer

    def token_id(self, name: str) -> int:
        """Id of a special token. Raises LoadError if the tokenizer does not have it."""
        if (token := self.tokenizer.token_to_id(name)) is None:
            fix = "use the tekken.json of Voxtral, which the tokenizers of other Mistral models do not replace"
            raise LoadError(f"the tokenizer has no token {name}\n  fix: {fix}")
        return token
