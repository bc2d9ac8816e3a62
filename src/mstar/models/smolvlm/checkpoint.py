"""The files of a SmolVLM model in the layout of its hub, and the parts of its network, each loaded by itself.

A worker that holds one part reads the tensors of that part only. No library is loaded until a network, its shape or
words are asked for. What the parts compute is transformers' own code.
"""

from __future__ import annotations

import functools
from typing import Any

from mstar.errors import LoadError
from mstar.nn.weights.sources import Weights

DEFAULT_WEIGHTS = "hub:HuggingFaceTB/SmolVLM2-2.2B-Instruct"
PARTS: dict[str, dict[str, str]] = {
    "vision_encoder": {f"model.{name}": f"model.{name}." for name in ("vision_model", "connector")},
    "lm": {"model.text_model": "model.text_model.", "lm_head": "lm_head."},
}
"""The modules of each part, as transformers names them, and how the names of their tensors begin in the files."""


class Checkpoint:
    """A folder with config.json, safetensors, words, and what is done to pictures before they are seen."""

    def __init__(self, weights: str) -> None:
        self._weights = Weights(weights)

    def network(self, part: str) -> Any:
        """transformers' model, of which only this part is there."""
        return self._weights.network(parts=PARTS[part])

    @functools.cached_property
    def config(self) -> Any:
        """transformers' description of the whole model."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self._weights.path("*.json"), local_files_only=True)

    @functools.cached_property
    def image_processor(self) -> Any:
        """What makes tiles of pictures."""
        from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

        made = SmolVLMImageProcessorPil.from_pretrained(self._weights.path("*.json"))
        edge, tile, seen = made.size["longest_edge"], made.max_image_size["longest_edge"], self.config.vision_config
        if edge % tile or tile != seen.image_size:  # the library then counts other tiles than it cuts
            fix = f"cut tiles of {seen.image_size}, and give a longest edge that is a multiple of it"
            what = f"pictures with an edge of {edge} are cut into tiles of {tile}, and {seen.image_size} are seen"
            raise LoadError(f"preprocessor_config.json: {what}\n  fix: {fix}")
        return made

    @functools.cached_property
    def tokenizer(self) -> Any:
        """Text to tokens and back. What looks like one of its special tokens is text, whoever wrote it."""
        made: Any = self._weights.tokenizer()
        made.encode_special_tokens = True
        return made
