"""Small decoders of many families, with random weights that make their answers depend on what they read."""

from __future__ import annotations

import functools

import torch
import transformers as t

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LAYERS = ["sliding_attention", "full_attention"]
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
GPT2 = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "eos_token_id": 2}

FAMILIES = {
    "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**SMALL)),
    "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**SMALL)),
    "qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**SMALL, head_dim=8)),
    "qwen3_moe": lambda: t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**SMALL, **EXPERTS, head_dim=8)),
    "gemma3": lambda: t.Gemma3ForCausalLM(
        t.Gemma3TextConfig(**SMALL, head_dim=8, sliding_window=8, layer_types=LAYERS, final_logit_softcapping=3.0)
    ),
    "mistral": lambda: t.MistralForCausalLM(t.MistralConfig(**SMALL, sliding_window=8)),
    "phi": lambda: t.PhiForCausalLM(t.PhiConfig(**(SMALL | {"num_key_value_heads": 4}))),
    "gemma2": lambda: t.Gemma2ForCausalLM(
        t.Gemma2Config(
            **SMALL,
            head_dim=8,
            sliding_window=8,
            layer_types=LAYERS,
            attn_logit_softcapping=2.0,
            query_pre_attn_scalar=8,
        )
    ),
    "gpt_oss": lambda: t.GptOssForCausalLM(
        t.GptOssConfig(
            **SMALL, head_dim=8, sliding_window=8, layer_types=LAYERS, num_local_experts=4, num_experts_per_tok=2
        )
    ),
    "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(**GPT2)),
}

DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "shared_expert_intermediate_size": 16,
}
RECURRENT_FAMILIES = {
    "mamba2": lambda: t.Mamba2ForCausalLM(
        t.Mamba2Config(
            vocab_size=97, hidden_size=32, num_hidden_layers=2, state_size=8, num_heads=8, head_dim=8, n_groups=1
        )
    ),
    "lfm2": lambda: t.Lfm2ForCausalLM(t.Lfm2Config(**SMALL, layer_types=["conv", "full_attention"])),
    "qwen3_next": lambda: t.Qwen3NextForCausalLM(
        t.Qwen3NextConfig(
            **SMALL, **EXPERTS, **DELTA_NET, head_dim=8, layer_types=["linear_attention", "full_attention"]
        )
    ),
}
"""Families with recurrent layers: a state space model, short convolutions, gated delta nets."""


@functools.cache
def network(name: str) -> torch.nn.Module:
    """A model of a family, as the library runs it; it must not be changed.

    With the library's small weights the likeliest token would hardly depend on the input.
    """
    return new_network(name)


@functools.cache
def paged_network(name: str) -> torch.nn.Module:
    """The same model again, for a component that will make it attend over pages."""
    return new_network(name)


def new_network(name: str) -> torch.nn.Module:
    """The same model again, for a test that changes it."""
    torch.manual_seed(0)
    with torch.inference_mode(mode=False):  # a test that is first to need it can be in an op; others copy it outside
        made = (FAMILIES | RECURRENT_FAMILIES)[name]().eval()
        for weight in made.parameters():
            if weight.ndim == 2:
                weight.data.mul_(4)
    return made
