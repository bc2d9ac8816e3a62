"""Qwen3-TTS checkpoint in the Hugging Face layout: configs, and tensors by part.

No library is imported until tensors or the tokenizer are loaded. Only CustomVoice checkpoints with the 12 Hz codec are
supported: voice cloning, voice design and the 25 Hz codec are rejected.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mstar.errors import LoadError
from mstar.nn.weights.sources import Weights, ignore_progress, print_progress

if TYPE_CHECKING:
    from torch import Tensor

_SUPPORTED_TYPES = {"tts_model_type": "custom_voice", "tokenizer_type": "qwen3_tts_tokenizer_12hz"}


class Checkpoint:
    """Folder with config.json, tensors and tokenizer; the codec is in its subfolder `speech_tokenizer`."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json. Raises LoadError for an unsupported model type."""
        file = self._weights.path("*.json") / "config.json"
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: use the folder of a Qwen3-TTS model")
        config = json.loads(file.read_bytes())
        for name, expected in _SUPPORTED_TYPES.items():
            if config.get(name) != expected:
                raise LoadError(
                    f"{file} has {name} {config.get(name)}, expected {expected}\n  fix: use a model with {expected}"
                )
        return config

    @property
    def talker_config(self) -> Mapping[str, Any]:
        """Config of the talker."""
        return self.config["talker_config"]

    @functools.cached_property
    def codec_config(self) -> Mapping[str, Any]:
        """Config of the codec decoder."""
        return json.loads(((self._weights / "speech_tokenizer").path() / "config.json").read_bytes())["decoder_config"]

    @functools.cached_property
    def talker_tensors(self) -> dict[str, Tensor]:
        """Tensors of the talker, including the code predictor."""
        return _tensors(self._weights, "talker.")

    def codec_tensors(self) -> dict[str, Tensor]:
        """Load the tensors of the codec decoder."""
        return _tensors(self._weights / "speech_tokenizer", "decoder.")

    def tokenizer(self) -> Any:
        """Load the tokenizer. It never parses special tokens in text."""
        folder = self._weights.path("*.json", "*.txt")
        if (folder / "tokenizer.json").is_file():
            tokenizer = self._weights.tokenizer()
        else:
            from transformers import Qwen2Tokenizer

            tokenizer: Any = Qwen2Tokenizer.from_pretrained(folder)._tokenizer
        tokenizer.encode_special_tokens = True
        return tokenizer


def _tensors(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """Load the tensors with this prefix, and strip it from their names."""
    from mstar.nn.weights.checkpoints import read_tensors

    tensors = read_tensors(weights.path(), print_progress if sys.stderr.isatty() else ignore_progress, (prefix,))
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
