"""Decoders of transformers: a chat answer equals that of `generate` from the same folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers as t

from mstar.cli.port.tiny_config import tiny_fields
from mstar.requests import ChatRequest, Message, Sampling
from tests.architectures.architecture import CHAT, Architecture
from tests.models.causal_lm import causal_lm_tiny
from tests.nn.lm.model_families import DELTA_NET, EXPERTS, LAYERS, SMALL

QUESTIONS = ("What is a cat, and why?", "Hi")
"""The first one is longer than a sliding window."""
NEW_TOKENS = 12
_IDS = {"vocab_size": SMALL["vocab_size"], "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_MAMBA = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}
_MAMBA_HEADS = {**_MAMBA, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
_WINDOW = {"sliding_window": 8, "layer_types": LAYERS}
_LATENT = {
    "num_key_value_heads": 4,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}

FAST = ("BloomForCausalLM", "FalconForCausalLM", "Phi3ForCausalLM")
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "ApertusForCausalLM": {},
    "ArceeForCausalLM": {},
    "BambaForCausalLM": _MAMBA_HEADS | {"attn_layer_indices": [1]},
    "BioGptForCausalLM": {},
    "BloomForCausalLM": {},
    "CodeGenForCausalLM": {},
    "CohereForCausalLM": {},
    "Cohere2ForCausalLM": _WINDOW,
    "DeepseekV2ForCausalLM": _LATENT,
    "DeepseekV3ForCausalLM": _LATENT,
    "Ernie4_5ForCausalLM": {},
    "Exaone4ForCausalLM": _WINDOW,
    "FalconForCausalLM": {},
    "FalconH1ForCausalLM": _MAMBA_HEADS | {"mamba_d_ssm": 64},
    "FalconMambaForCausalLM": {"state_size": 4},
    "GemmaForCausalLM": {},
    "Gemma2ForCausalLM": _WINDOW | {"query_pre_attn_scalar": 8},
    "Gemma3ForCausalLM": _WINDOW,
    "GlmForCausalLM": {},
    "Glm4ForCausalLM": {},
    "Glm4MoeForCausalLM": {},
    "GPT2LMHeadModel": {},
    "GPTBigCodeForCausalLM": {},
    "GPTJForCausalLM": {},
    "GPTNeoForCausalLM": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "GPTNeoXForCausalLM": {},
    "GptOssForCausalLM": _WINDOW,
    "GraniteForCausalLM": {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 3.0},
    "GraniteMoeForCausalLM": {},
    "GraniteMoeHybridForCausalLM": _MAMBA_HEADS | {"layer_types": ["mamba", "attention"]},
    "HeliumForCausalLM": {},
    "HunYuanDenseV1ForCausalLM": {"head_dim": 8},
    "JambaForCausalLM": _MAMBA | {"use_mamba_kernels": False, "attn_layer_period": 2, "attn_layer_offset": 1},
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention"]},
    "LlamaForCausalLM": {},
    "MambaForCausalLM": {"state_size": 4},
    "Mamba2ForCausalLM": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1},
    "MiniMaxForCausalLM": {"layer_types": ["linear_attention", "full_attention"]},
    "MinistralForCausalLM": _WINDOW | {"head_dim": 8},
    "MistralForCausalLM": {"sliding_window": 8},
    "MixtralForCausalLM": {},
    "MptForCausalLM": {"max_seq_len": 256},
    "NemotronForCausalLM": {"num_key_value_heads": 2, "head_dim": 8},
    "OlmoForCausalLM": {},
    "Olmo2ForCausalLM": {},
    "Olmo3ForCausalLM": _WINDOW,
    "OlmoeForCausalLM": {},
    "OPTForCausalLM": {},
    "PersimmonForCausalLM": {},
    "PhiForCausalLM": {},
    "Phi3ForCausalLM": {},
    "PhimoeForCausalLM": {},
    "Qwen2ForCausalLM": {},
    "Qwen2MoeForCausalLM": {},
    "Qwen3ForCausalLM": {},
    "Qwen3MoeForCausalLM": EXPERTS,
    "Qwen3NextForCausalLM": EXPERTS | DELTA_NET | {"layer_types": ["linear_attention", "full_attention"]},
    "RecurrentGemmaForCausalLM": {"lru_width": 32, "block_types": ["recurrent", "attention"]},
    "RwkvForCausalLM": {"context_length": 256, "attention_hidden_size": 32},
    "SeedOssForCausalLM": {},
    "SmolLM3ForCausalLM": {"no_rope_layers": [1, 0]},
}
"""Fields of each config beside those of `tiny_fields`."""


SEEDS = {"GPTNeoXForCausalLM": 1, "GraniteForCausalLM": 1, "HunYuanDenseV1ForCausalLM": 1}
"""Seeds of the weights of networks that would end their answer at once with the default, 0."""


def save(folder: Path, name: str) -> Path:
    """Save a decoder with a tokenizer and a chat template."""
    network_class: Any = getattr(t, name)
    config_class = network_class.config_class
    torch.manual_seed(SEEDS.get(name, 0))
    network = network_class(config_class(**tiny_fields(config_class) | _IDS | FIELDS[name])).eval()
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim == 2:  # with the library's weights the likeliest token would hardly depend on the input
                weight.mul_(4)
    network.generation_config = t.GenerationConfig(eos_token_id=2, pad_token_id=0)
    network.save_pretrained(folder)
    causal_lm_tiny.make_tokenizer().save_pretrained(folder)
    return folder


def compare(model: Any, folder: Path) -> str:
    """Greedy answers to two questions, and how the network runs."""
    counts = list[int]()
    for question in QUESTIONS:
        request = ChatRequest((Message("user", (question,)),), Sampling(max_tokens=NEW_TOKENS))
        tokens = [int(emission.value) for emission in model.run(request).emissions]
        answer, expected = (
            model.detokenize(tokens),
            causal_lm_tiny.library_answer(folder, question, NEW_TOKENS, do_sample=False),
        )
        assert answer == expected, f"{answer!r} instead of {expected!r}"
        counts.append(len(tokens))
    assert counts[0] > 2, "the tiny network ends at once"
    runs = "paged attention" if model.lm.checkpoint.is_paged else "its own forward, one request at a time"
    return f"{sum(counts)} tokens; {runs}"


def _make(name: str) -> Architecture:
    return Architecture(name, CHAT, lambda folder: save(folder, name), compare, is_fast=name in FAST)


DECODERS = tuple(map(_make, FIELDS))
