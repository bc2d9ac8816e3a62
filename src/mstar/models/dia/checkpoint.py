"""Dia checkpoint in the Hugging Face layout, as `save_pretrained` writes it: config, tokenizer, generation config.

No library is imported until the config, the tokenizer or a network is loaded.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.errors import LoadError
from mstar.nn.lm.generation_config import FILE_NAME, read_default_sampling
from mstar.nn.weights.sources import Weights
from mstar.requests import Sampling

if TYPE_CHECKING:
    from transformers import DiaConfig

DELAYS = (0, 8, 9, 10, 11, 12, 13, 14, 15)
"""By how many frames each codebook is delayed. A frame is complete when the last one has arrived."""
MAX_DELAY = max(DELAYS)
DEFAULT_SAMPLING = Sampling(max_tokens=3070, temperature=1.8, top_k=50, top_p=0.9)
"""Sampling parameters of the published checkpoint: at most 35 s of speech. A token is a frame."""
DEFAULT_GUIDANCE_SCALE = 3.0
DEFAULT_CODEC = "hub:descript/dac_44khz"


class Checkpoint:
    """Folder with config.json, tokenizer_config.json and safetensors."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def _read_json(self, name: str) -> dict[str, Any] | None:
        file = self.weights.path("*.json") / name
        return json.loads(file.read_bytes()) if file.is_file() else None

    @functools.cached_property
    def config(self) -> DiaConfig:
        """config.json. Raises LoadError for another delay pattern."""
        from transformers import DiaConfig

        file = self.weights.path("*.json") / "config.json"
        if (settings := self._read_json(file.name)) is None or settings.get("model_type") != "dia":
            raise LoadError(f"{file} is not that of a Dia model\n  fix: use a folder as save_pretrained writes it")
        config = DiaConfig.from_dict(settings)
        if tuple(config.delay_pattern or ()) != DELAYS:
            problem = f"{file} has delay_pattern {config.delay_pattern}, expected {list(DELAYS)}"
            raise LoadError(f"{problem}\n  fix: use a model with this pattern, such as nari-labs/Dia-1.6B-0626")
        return config

    @functools.cached_property
    def tokenizer(self) -> Any:
        """Tokenizer of the bytes of a text and of the speaker tags."""
        from transformers import DiaTokenizer

        return DiaTokenizer.from_pretrained(self.weights.path("*.json"), local_files_only=True)

    @functools.cached_property
    def sampling(self) -> Sampling:
        """Sampling parameters of generation_config.json. The library does not sample with a temperature below 1."""
        config = self._read_json(FILE_NAME)
        if config is None:
            return DEFAULT_SAMPLING
        sampling = read_default_sampling(self.weights.path("*.json")) or DEFAULT_SAMPLING
        # `max_length` counts the start frame and the frame of end codes too.
        frames = int(config.get("max_length") or DEFAULT_SAMPLING.max_tokens + 2) - 2
        temperature = max(sampling.temperature, 1.0) if sampling.temperature else 0.0
        top_k = int(config.get("top_k") or DEFAULT_SAMPLING.top_k)  # guidance filters greedy codes too
        return replace(sampling, max_tokens=frames, temperature=temperature, top_k=top_k)

    @functools.cached_property
    def guidance_scale(self) -> float:
        """Guidance scale of generation_config.json; 1 is no guidance."""
        config = self._read_json(FILE_NAME)
        return DEFAULT_GUIDANCE_SCALE if config is None else float(config.get("guidance_scale") or 1.0)

    @property
    def codec(self) -> Weights:
        """Weights of the audio codec that processor_config.json names: a folder, or a repository of the Hub."""
        processor = self._read_json("processor_config.json") or {}
        named = processor.get("audio_tokenizer") or {}
        name = str(named.get("audio_tokenizer_name_or_path") or "")
        if not name:
            return Weights(DEFAULT_CODEC)
        return Weights(name if Path(name).is_dir() else f"hub:{name}")

    def load_decoder(self) -> Any:
        """Load the decoder and its head."""
        _ = self.config
        return self.weights.network(parts={"model.decoder": "model.decoder.", "logits_dense": "logits_dense."})

    def load_encoder(self) -> Any:
        """Load the text encoder."""
        _ = self.config
        return self.weights.network(parts={"model.encoder": "model.encoder."}).model.encoder
