"""Small language models of several families, each of which two ranks can share."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import save_model

from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.weights.sources import Weights
from tests.integration import language_models
from tests.nn.lm.model_families import new_network

GenerateRequest = language_models.GenerateRequest


def _read_checkpoint(family: str) -> Any:
    """A network from files, of which each rank reads its part. (`save_pretrained` writes on rank 0 only.)"""
    network = new_network(family)
    network.config.architectures = [type(network).__name__]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(network.config.to_json_string())
        save_model(network, str(Path(folder, "model.safetensors")), {"format": "pt"})
        return Weights(folder).network().eval()


class _Family(language_models.Tiny):
    family = ""

    def __init__(self) -> None:
        self.lm = CausalLM(lambda: _read_checkpoint(self.family), eos_token_id=5, pages=self.pages)


class Llama(_Family):
    """Llama."""

    family = "llama"


class Qwen2(_Family):
    """Qwen2."""

    family = "qwen2"


class Qwen3(_Family):
    """Qwen3."""

    family = "qwen3"


class Qwen3Moe(_Family):
    """Qwen3 with experts."""

    family = "qwen3_moe"


class Gemma3(_Family):
    """Gemma 3."""

    family = "gemma3"


class Mistral(_Family):
    """Mistral."""

    family = "mistral"


class Phi(_Family):
    """Phi."""

    family = "phi"
