"""Qwen3-Omni checkpoint in the Hugging Face layout: each part of the network is loaded by itself.

A worker that holds one part reads the tensors of that part only. No library is imported until a network, config or
tokenizer is loaded. The networks are those of transformers.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from mstar.errors import LoadError
from mstar.nn.weights.sources import Weights, ignore_progress

DEFAULT_WEIGHTS = "hub:Qwen/Qwen3-Omni-30B-A3B-Instruct"
_TALKER_MODULES = ("model", "codec_head", "text_projection", "hidden_projection")
PARTS: dict[str, dict[str, str]] = {
    "audio_encoder": {"thinker.model.audio_tower": "thinker.audio_tower."},
    "vision_encoder": {"thinker.model.visual": "thinker.visual."},
    "thinker": {"thinker.model.language_model": "thinker.model.", "thinker.lm_head": "thinker.lm_head."},
    "talker": {f"talker.{name}": f"talker.{name}." for name in _TALKER_MODULES},
    "vocoder": {"code2wav": "code2wav."},
}
"""Modules of each part as transformers names them, and the prefixes of their tensors in the files."""
FIRST_CODE_PREFIX = "talker.model.codec_embedding."
CODE_PREDICTOR_PREFIX = "talker.code_predictor."


class Checkpoint:
    """Folder with config.json, safetensors, tokenizer, and audio and image preprocessing."""

    def __init__(self, weights: str) -> None:
        self._weights = Weights(weights)

    def network(self, part: str) -> Any:
        """Load the transformers model with only this part."""
        return self._weights.network(parts=PARTS[part]).eval().requires_grad_(requires_grad=False)

    def tensors(self, *prefixes: str) -> Any:
        """Load the tensors with these prefixes."""
        from mstar.nn.weights.checkpoints import read_tensors

        return read_tensors(self._weights.path(), ignore_progress, prefixes)

    @functools.cached_property
    def config(self) -> Any:
        """The transformers config of the whole model."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self._weights.path("*.json"), local_files_only=True)

    @functools.cached_property
    def voices(self) -> dict[str, int]:
        """Speaker id of each voice. Imports no library, so routes can read it."""
        file = self._weights.path("*.json") / "config.json"
        config = json.loads(file.read_bytes()) if file.is_file() else {}
        if not config.get("talker_config", {}).get("speaker_id"):
            raise LoadError(f"{file} names no voices\n  fix: use the folder of a Qwen3-Omni model with a talker")
        return config["talker_config"]["speaker_id"]

    @functools.cached_property
    def feature_extractor(self) -> Any:
        """Feature extractor for mel spectrograms."""
        from transformers import WhisperFeatureExtractor

        return WhisperFeatureExtractor.from_pretrained(self._weights.path("*.json"))

    @functools.cached_property
    def image_processor(self) -> Any:
        """Image processor for patches."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        return Qwen2VLImageProcessorPil.from_pretrained(self._weights.path("*.json"))

    @functools.cached_property
    def tokenizer(self) -> Any:
        """Tokenizer that never parses special tokens in text."""
        folder = self._weights.path("*.json", "*.txt")
        if (folder / "tokenizer.json").is_file():
            tokenizer = self._weights.tokenizer()
        else:
            from transformers import Qwen2Tokenizer

            tokenizer: Any = Qwen2Tokenizer.from_pretrained(folder)._tokenizer
        tokenizer.encode_special_tokens = True
        return tokenizer
