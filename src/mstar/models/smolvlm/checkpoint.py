"""SmolVLM checkpoint in the Hugging Face layout: each part of the network is loaded by itself.

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

DEFAULT_WEIGHTS = "hub:HuggingFaceTB/SmolVLM2-2.2B-Instruct"
PARTS: dict[str, dict[str, str]] = {
    "vision_encoder": {f"model.{name}": f"model.{name}." for name in ("vision_model", "connector")},
    "lm": {"model.text_model": "model.text_model.", "lm_head": "lm_head."},
}
"""Modules of each part as transformers names them, and the prefixes of their tensors in the files."""


class Checkpoint:
    """Folder with config.json, safetensors, tokenizer, and image preprocessing."""

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

    @functools.cached_property
    def image_processor(self) -> Any:
        """Image processor that cuts images into tiles."""
        from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

        processor = SmolVLMImageProcessorPil.from_pretrained(self._weights.path("*.json"))
        edge, tile, vision = (
            processor.size["longest_edge"],
            processor.max_image_size["longest_edge"],
            self.config.vision_config,
        )
        if edge % tile or tile != vision.image_size:  # the library would count other tiles than it cuts
            what = f"images with a longest edge of {edge} give tiles of {tile}, the encoder reads {vision.image_size}"
            fix = f"set the tile size to {vision.image_size}, and the longest edge to a multiple of it"
            raise LoadError(f"preprocessor_config.json: {what}\n  fix: {fix}")
        return processor

    @functools.cached_property
    def tokenizer(self) -> Any:
        """Tokenizer that never parses special tokens in text."""
        tokenizer: Any = self._weights.tokenizer()
        tokenizer.encode_special_tokens = True
        return tokenizer
