"""Small language models with experts."""

from __future__ import annotations

from typing import Any

from mstar.nn.lm.causal_lm import CausalLM
from tests.integration import language_models
from tests.nn.lm.model_families import SMALL, new_network

GenerateRequest = language_models.GenerateRequest
WIDE = {
    "hidden_size": 512,
    "moe_intermediate_size": 256,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 3,
    "head_dim": 64,
}


class Qwen3Moe(language_models.Tiny):
    """Qwen3 with experts."""

    family = "qwen3_moe"

    def __init__(self) -> None:
        self.lm = CausalLM(lambda: new_network(self.family), eos_token_id=5, pages=self.pages)


class GptOss(Qwen3Moe):
    """gpt-oss, whose experts have biases."""

    family = "gpt_oss"


class Qwen3Next(Qwen3Moe):
    """Qwen3-Next, which has a shared expert and recurrent layers."""

    family = "qwen3_next"


def wide_network() -> Any:
    """A Qwen3 with experts, wide enough that most bytes are hidden states."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**(SMALL | WIDE))).eval()


class Wide(language_models.Tiny):
    """A wide Qwen3 with experts, which never ends a text."""

    def __init__(self) -> None:
        self.lm = CausalLM(wide_network, eos_token_id=-1, pages=self.pages)
