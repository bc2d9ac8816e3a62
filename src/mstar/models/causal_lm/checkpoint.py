"""Checkpoint of a causal language model: network, tokenizer with chat template, stop tokens, sampling defaults.

A folder in the Hugging Face layout or a GGUF file. Nothing is read before it is needed. Configs are read as JSON and
the tokenizer without torch, because front ends use both.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mstar.errors import LoadError
from mstar.nn.lm.generation_config import read_default_sampling
from mstar.nn.weights.sources import Weights, find_gguf
from mstar.requests import Sampling

PAGED_FAMILIES = frozenset(
    {
        *("apertus", "arcee", "biogpt", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2"),
        *("gemma3_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "granite"),
        *("granitemoe", "helium", "hunyuan_v1_dense", "llama", "ministral", "mistral", "mixtral", "nemotron"),
        *("olmo", "olmo2", "olmo3", "olmoe", "opt", "persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe"),
        *("qwen3", "qwen3_moe", "seed_oss", "smollm3"),
        *("bamba", "falcon_h1", "granitemoehybrid", "lfm2", "mamba2", "qwen3_next"),
    }
)
"""`model_type` of the families that run in batches, with paged attention; those of the last line have recurrent layers.
Each is compared with `generate` in `tests/architectures`; any other family runs through its own forward in
transformers, one request at a time."""


def open_checkpoint(weights: Weights) -> FolderCheckpoint | GgufCheckpoint:
    """The checkpoint of these weights. Raises LoadError."""
    path = weights.path()
    gguf = find_gguf(path)
    return GgufCheckpoint(gguf) if gguf else FolderCheckpoint(weights, path)


class FolderCheckpoint:
    """A folder in the Hugging Face layout."""

    def __init__(self, weights: Weights, folder: Path) -> None:
        self._weights = weights
        self.folder = folder

    def network(self) -> Any:
        """Load the network of transformers."""
        return self._weights.network()

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """Content of config.json."""
        return self._read_json("config.json")

    @functools.cached_property
    def generation_config(self) -> Mapping[str, Any]:
        """Content of generation_config.json; empty if there is none."""
        return self._read_json("generation_config.json")

    @functools.cached_property
    def default_sampling(self) -> Sampling | None:
        """Sampling parameters in generation_config.json."""
        return read_default_sampling(self.folder)

    @property
    def is_paged(self) -> bool:
        """Whether the network supports paged attention."""
        return self.config.get("model_type") in PAGED_FAMILIES

    @property
    def max_positions(self) -> int | None:
        """Context length; None if the config has none."""
        names = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length")
        return next((self.config[name] for name in names if isinstance(self.config.get(name), int)), None)

    @functools.cached_property
    def eos_token_ids(self) -> Sequence[int]:
        """End-of-sequence tokens: of the generation config, else of the config, else of the tokenizer."""
        candidates = (self.generation_config.get("eos_token_id"), self.config.get("eos_token_id"))
        ids = next((ids for ids in candidates if ids is not None), self.tokenizer.eos_token_id)
        return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of tokenizer.json, with the special tokens and chat template of the other files."""
        file = self.folder / "tokenizer.json"
        if not file.is_file():
            fix = "save the tokenizer there with AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)"
            raise LoadError(f"{file} is missing\n  fix: {fix}")
        from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(self.folder, local_files_only=True)

    def _read_json(self, name: str) -> Mapping[str, Any]:
        file = self.folder / name
        return json.loads(file.read_bytes()) if file.is_file() else {}


class GgufCheckpoint:
    """A GGUF file with a Llama."""

    is_paged = True
    default_sampling: Sampling | None = None
    folder: Path | None = None
    """It is one file, which only mstar reads."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @functools.cached_property
    def _file(self) -> Any:
        from mstar.nn.weights.gguf import GgufFile

        return GgufFile(self._path)

    def network(self) -> Any:
        """Load the network, with dequantized weights."""
        return self._file.network()

    @property
    def max_positions(self) -> int:
        """Context length."""
        return self._file.field("llama.context_length")

    @property
    def eos_token_ids(self) -> Sequence[int]:
        """End-of-sequence token."""
        name = "tokenizer.ggml.eos_token_id"
        return [self._file.field(name)] if self._file.has_field(name) else []

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer and chat template in the header."""
        from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

        tokens = self._file.field("tokenizer.ggml.tokens")
        names = {"bos_token": "tokenizer.ggml.bos_token_id", "eos_token": "tokenizer.ggml.eos_token_id"}
        special = {
            name: tokens[self._file.field(field)] for name, field in names.items() if self._file.has_field(field)
        }
        template = "tokenizer.chat_template"
        if self._file.has_field(template):
            special["chat_template"] = self._file.field(template)
        return PreTrainedTokenizerFast(tokenizer_object=self._file.tokenizer(), **special)
