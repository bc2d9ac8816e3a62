"""Checkpoint of a sentence encoder: a folder as sentence-transformers saves it, or a text encoder of transformers.

modules.json lists the modules: the network, its pooling, and whether vectors are normalized. Without it vectors are the
mean of the hidden states and not normalized, as sentence-transformers does with such a folder. No library is imported
until the tokenizer or the network is loaded.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mstar.errors import LoadError, format_names
from mstar.nn.weights.sources import Weights

_POOLING_KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}

_OFFSET_POSITIONS = ("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet")
"""Model types whose positions start after the padding token, so that a text has fewer tokens than positions."""
_MODULES = ("Transformer", "Pooling", "Normalize")
"""Modules that are supported, in this order. The last one is optional."""


class Checkpoint:
    """Folder with config.json, safetensors and tokenizer.json."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def network(self) -> Any:
        """Load the encoder."""
        return self._weights.network()

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer. Texts longer than `max_tokens` are truncated; a batch is padded by the encoder."""
        tokenizer = self._weights.tokenizer()
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.max_tokens)
        return tokenizer

    @functools.cached_property
    def max_tokens(self) -> int:
        """Maximum tokens of a text: of sentence_bert_config.json, else the positions of the network."""
        if limit := self._read_json("sentence_bert_config.json").get("max_seq_length"):
            return limit
        config = self._read_json("config.json")
        positions = config.get("max_position_embeddings")
        if not positions:
            fix = "write max_seq_length, such as 512, to sentence_bert_config.json"
            raise LoadError(f"{self._folder} does not say how many tokens a text can have\n  fix: {fix}")
        is_offset = config.get("model_type") in _OFFSET_POSITIONS
        return positions - (config.get("pad_token_id", 1) + 1) if is_offset else positions

    @property
    def vector_size(self) -> int:
        """Size of a vector."""
        config = self._read_json("config.json")
        return config.get("hidden_size") or config["dim"]  # DistilBERT calls it dim

    @functools.cached_property
    def pooling(self) -> str:
        """`mean` or `cls`: how the hidden states of a text become one vector. Raises LoadError for other modes."""
        folder = self._module_folder("Pooling")
        if folder is None:
            return "mean"
        file = (self._weights / folder).path("*.json") / "config.json"
        config: Mapping[str, Any] = json.loads(file.read_bytes())
        modes: list[str] = [
            name for name, is_on in config.items() if name.startswith("pooling_mode_") and is_on is True
        ]
        modes += [str(config["pooling_mode"])] if "pooling_mode" in config else []
        poolings = [_POOLING_KEYS.get(mode, mode) for mode in modes]
        if len(poolings) != 1 or poolings[0] not in _POOLING_KEYS.values():
            problem = f"{file}: unsupported pooling {format_names(poolings)}"
            raise LoadError(f"{problem}\n  fix: use a model with mean or cls pooling")
        return poolings[0]

    @functools.cached_property
    def is_normalized(self) -> bool:
        """Whether vectors have length 1."""
        return self._module_folder("Normalize") is not None

    @functools.cached_property
    def _folder(self) -> Path:
        return self._weights.path()

    def _module_folder(self, name: str) -> str | None:
        """Folder of the module of this class, None if the model has none. Raises LoadError for other modules."""
        file = self._folder / "modules.json"
        if not file.is_file():
            return None
        modules = json.loads(file.read_bytes())
        names: list[str] = [module["type"].rpartition(".")[2] for module in modules]
        if tuple(names) not in (_MODULES, _MODULES[:2]):
            problem = f"{file}: unsupported modules {', '.join(names)}"
            raise LoadError(f"{problem}\n  fix: use a model with Transformer, Pooling, and optionally Normalize")
        return modules[names.index(name)]["path"] if name in names else None

    def _read_json(self, name: str) -> Mapping[str, Any]:
        file = self._folder / name
        return json.loads(file.read_bytes()) if file.is_file() else {}
