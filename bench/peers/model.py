"""The model and the prompts that mstar and its peers are measured on: the same weights, the same token ids.

A Llama of the shape of SmolLM2-135M with random weights. It writes nonsense at the speed of the real one, and needs no
download and no tokenizer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHAPE = {
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "initializer_range": 0.04,
}


def write_model(path: Path, seed: int = 0) -> None:
    """Write the weights in bf16 as safetensors, laid out as transformers and vLLM read them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).to(torch.bfloat16).save_pretrained(path)


def load_network(path: Path) -> Any:
    """The written model as transformers' own network, ready to run."""
    import torch
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()


def make_prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Prompts of random token ids. Another seed gives other prompts, so that no cache can help."""
    chosen = random.Random(seed)
    return [[chosen.randrange(SHAPE["vocab_size"]) for _ in range(length)] for _ in range(count)]


@dataclass(frozen=True)
class RunResult:
    """What one peer did with one set of prompts, all there at the start."""

    seconds: float
    outputs: list[list[int]]

    @property
    def tokens_per_s(self) -> float:
        """Tokens written in a second, of all requests together."""
        return sum(map(len, self.outputs)) / self.seconds
