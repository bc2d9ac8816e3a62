"""Tiny configs: the fields of a config class of transformers that make its network small enough for a test.

The fields are those of the dataclass, by name: widths, depths, heads, experts, vocabularies. What a config derives from
them is left to it. Configs of parts (`text_config`, `vision_config`) are made tiny in the same way.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

VOCABULARY = 128
RULES: tuple[tuple[str, int], ...] = (
    (r"(text_|audio_)?vocab_size", VOCABULARY),
    (r"(num_)?(hidden_|encoder_|decoder_|attention_)?layers|n_layers?|depth|num_blocks", 2),
    (r"num_key_value_heads|n_kv_heads|num_kv_heads|kv_heads|encoder_num_key_value_heads", 2),
    (r"(num_|n_)?(attention_|encoder_attention_|decoder_attention_)?heads?|(en|de)coder_attention_heads|n_head", 4),
    (r"head_dim|d_kv|kv_channels|(qk_nope_|qk_rope_|qk_|v_)head_dim|attention_head_dim|head_size", 8),
    (r"rotary_dim", 4),
    (r"(q|kv)_lora_rank", 16),
    (
        r"hidden_size|d_model|n_embd|embed_dim|dim|encoder_hidden_size|word_embed_proj_dim|embedding_size|projection_dim",
        32,
    ),
    (r"(moe_|shared_expert_|shared_|expert_)?intermediate_size|n_inner|d_ff|d_inner", 64),
    (r"((en|de)coder_)?ffn_(dim|hidden_size)|mlp_hidden_size|dense_intermediate_size|mlp_dim", 64),
    (r"(num_|n_)(local_|routed_)?experts", 4),
    (r"num_experts_per_tok(en)?|moe_topk|top_k_experts", 2),
    (r"n_group|topk_group", 1),
    (r"max_position_embeddings|n_positions|n_ctx|max_sequence_length|seq_length", 256),
    (r"image_size|crop_size", 32),
    (r"patch_size", 8),
    (r"conv_dim|classifier_proj_size|flow_size|spectrogram_bins|speaker_embedding_size", 16),
    (r"num_conv_pos_embeddings", 16),
    (r"num_conv_pos_embedding_groups", 4),
    (r"sliding_window", 8),
)
"""Pattern of a field's name, and its tiny value. The first pattern that fits counts; larger defaults are replaced."""


def tiny_fields(config_class: Any) -> dict[str, Any]:
    """The fields that make a config tiny. Token ids that the tiny vocabulary does not have become its last ones."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):
        if field.init and (tiny := _tiny_value(field.name, field.default)) is not None:
            fields[field.name] = tiny
    parts: Mapping[str, Any] = config_class.sub_configs
    if parts:
        whole = config_class()
        for name in parts:
            if (part := getattr(whole, name, None)) is not None:
                fields[name] = {"model_type": part.model_type, **tiny_fields(type(part))}
    return fields | _tiny_ids(config_class)


def _tiny_value(name: str, default: Any) -> Any:
    """Tiny value of a field; None to leave it as it is."""
    tiny = next((value for pattern, value in RULES if re.fullmatch(pattern, name)), None)
    if tiny is None or isinstance(default, bool):
        return None
    if isinstance(default, int) and default > tiny:
        return tiny
    if isinstance(default, list | tuple) and all(isinstance(item, int) for item in default):
        return [min(item, tiny) for item in default]
    return None


def _tiny_ids(config_class: Any) -> dict[str, Any]:
    """Token ids that are too large, mapped to the last ids of the vocabulary; equal ids stay equal."""
    mapped: dict[int, int] = {}

    def tiny(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [tiny(item) for item in value]
        return mapped.setdefault(value, VOCABULARY - 1 - len(mapped)) if value >= VOCABULARY else value

    fields: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):
        value, is_id = field.default, re.fullmatch(r"\w+_(token_)?ids?|\w+_token_index", field.name)
        values: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
        if is_id and all(type(item) is int for item in values) and max(values, default=0) >= VOCABULARY:
            fields[field.name] = tiny(value)
    return fields
