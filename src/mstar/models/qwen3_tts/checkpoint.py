"""The files of a Qwen3-TTS model in the layout of its hub: what they say, and the tensors of each of its parts.

Needs no library until tensors or tokens are asked for. Only models with voices of their own are read: those that clone
a voice or are told of one are refused, and so is the codec of 25 frames a second.
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
    """A folder with config.json, tensors and words, and the codec's in its folder `speech_tokenizer`."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """What config.json says."""
        file = self._weights.path("*.json") / "config.json"
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: give the folder of a Qwen3-TTS model")
        config = json.loads(file.read_bytes())
        for name, wanted in _SUPPORTED_TYPES.items():
            if config.get(name) != wanted:
                raise LoadError(f"{file} has {name} {config.get(name)}\n  fix: give a model that has {wanted}")
        return config

    @property
    def talker_config(self) -> Mapping[str, Any]:
        """What it says of the talker."""
        return self.config["talker_config"]

    @functools.cached_property
    def codec_config(self) -> Mapping[str, Any]:
        """What it says of the codec that turns codes into sound."""
        return json.loads(((self._weights / "speech_tokenizer").path() / "config.json").read_bytes())["decoder_config"]

    @functools.cached_property
    def talker_tensors(self) -> dict[str, Tensor]:
        """The tensors of the talker, and those of the code predictor among them."""
        return _tensors(self._weights, "talker.")

    def codec_tensors(self) -> dict[str, Tensor]:
        """The tensors of the codec that turns codes into sound."""
        return _tensors(self._weights / "speech_tokenizer", "decoder.")

    def tokenizer(self) -> Any:
        """Text to tokens. What looks like one of its special tokens is text."""
        folder = self._weights.path("*.json", "*.txt")
        if (folder / "tokenizer.json").is_file():
            made = self._weights.tokenizer()
        else:
            from transformers import Qwen2Tokenizer

            made: Any = Qwen2Tokenizer.from_pretrained(folder)._tokenizer
        made.encode_special_tokens = True
        return made


def _tensors(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, by the rest of their names."""
    from mstar.nn.weights.checkpoints import read_tensors

    found = read_tensors(weights.path(), print_progress if sys.stderr.isatty() else ignore_progress, (prefix,))
    return {name.removeprefix(prefix): one for name, one in found.items()}
