"""The files of a Qwen3-Omni model in the layout of its hub, and the parts of its network, each loaded by itself.

A worker that holds one part reads the tensors of that part only. No library is loaded until a network, its shape or
words are asked for. What the parts compute is transformers' own code.
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
"""The modules of each part, as transformers names them, and how the names of their tensors begin in the files."""
FIRST_CODE_PREFIX, CODE_PREDICTOR_PREFIX = "talker.model.codec_embedding.", "talker.code_predictor."


class Checkpoint:
    """A folder with config.json, safetensors, words, and what is done to sound and pictures before they are seen."""

    def __init__(self, weights: str) -> None:
        self._weights = Weights(weights)

    def network(self, part: str) -> Any:
        """transformers' model, of which only this part is there."""
        return self._weights.network(parts=PARTS[part]).eval().requires_grad_(requires_grad=False)

    def tensors(self, *prefixes: str) -> Any:
        """The tensors whose names begin so."""
        from mstar.nn.weights.checkpoints import read_tensors

        return read_tensors(self._weights.path(), ignore_progress, prefixes)

    @functools.cached_property
    def config(self) -> Any:
        """transformers' description of the whole model."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self._weights.path("*.json"), local_files_only=True)

    @functools.cached_property
    def voices(self) -> dict[str, int]:
        """The code of each voice. It needs no library: a route asks for it."""
        file = self._weights.path("*.json") / "config.json"
        said = json.loads(file.read_bytes()) if file.is_file() else {}
        if not said.get("talker_config", {}).get("speaker_id"):
            raise LoadError(f"{file} names no voices\n  fix: give the folder of a Qwen3-Omni model that speaks")
        return said["talker_config"]["speaker_id"]

    @functools.cached_property
    def feature_extractor(self) -> Any:
        """What makes spectra of sound."""
        from transformers import WhisperFeatureExtractor

        return WhisperFeatureExtractor.from_pretrained(self._weights.path("*.json"))

    @functools.cached_property
    def image_processor(self) -> Any:
        """What makes patches of pictures."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        return Qwen2VLImageProcessorPil.from_pretrained(self._weights.path("*.json"))

    @functools.cached_property
    def tokenizer(self) -> Any:
        """Text to tokens and back. What looks like one of its special tokens is text, whoever wrote it."""
        folder = self._weights.path("*.json", "*.txt")
        if (folder / "tokenizer.json").is_file():
            made = self._weights.tokenizer()
        else:
            from transformers import Qwen2Tokenizer

            made: Any = Qwen2Tokenizer.from_pretrained(folder)._tokenizer
        made.encode_special_tokens = True
        return made
