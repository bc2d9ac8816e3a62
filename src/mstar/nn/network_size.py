"""Sizes of networks without their weights: parameters, weight bytes and KV bytes per position.

Figures of a causal language model come from its config.json: the network is built on the meta device. Those of
published models with several components are in `mstar.nn.published_sizes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
_ATTENTION_LAYERS = ("attention", "full_attention", "sliding_attention", "chunked_attention")


@dataclass(frozen=True, slots=True)
class KVSize:
    """Shape of the KV cache of a network."""

    layers: int
    heads: int
    """Key-value heads."""
    key_size: int
    value_size: int
    dtype: str
    is_paged: bool = True
    """Whether it is in pages. Otherwise each request has a state of its own."""

    @property
    def position_bytes(self) -> int:
        """Bytes of one position, all layers together."""
        return self.layers * self.heads * (self.key_size + self.value_size) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class NetworkSize:
    """Size of the networks of a component."""

    parameters: int
    dtype: str
    kv: KVSize | None = None
    """None if it has no KV cache."""

    def with_settings(self, settings: Mapping[str, str]) -> NetworkSize:
        """The size with the settings of a component in a placement: `dtype` and `kv_cache_dtype`."""
        dtype = settings.get("dtype", self.dtype)
        if self.kv is None:
            return replace(self, dtype=dtype)
        kv_dtype = settings.get("kv_cache_dtype", settings.get("dtype", self.kv.dtype))
        return replace(self, dtype=dtype, kv=replace(self.kv, dtype=kv_dtype))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters."""
        return self.parameters * DTYPE_BYTES[self.dtype]

    @property
    def position_bytes(self) -> int:
        """Bytes of one position of its KV cache; 0 without one."""
        return 0 if self.kv is None else self.kv.position_bytes


def read_network_size(folder: Path) -> NetworkSize:
    """Size of the causal language model whose config.json is in a folder. Raises LoadError."""
    from mstar.nn.weights.checkpoints import meta_network  # imports torch and transformers

    network: Any = meta_network(folder)
    dtype = str(network.dtype).removeprefix("torch.")
    return NetworkSize(sum(parameter.numel() for parameter in network.parameters()), dtype, kv_size(network.config))


def kv_size(config: Any) -> KVSize:
    """Shape of the KV cache of a decoder with this transformers config, in its dtype."""
    config = config.get_text_config()
    dtype = str(config.dtype or "float32").removeprefix("torch.")
    kinds = getattr(config, "layer_types", None)
    layers = config.num_hidden_layers if kinds is None else sum(kind in _ATTENTION_LAYERS for kind in kinds)
    heads = config.num_attention_heads
    if getattr(config, "kv_lora_rank", None) and getattr(config, "v_head_dim", None):  # stored decompressed
        return KVSize(layers, heads, config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim, dtype)
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return KVSize(layers, getattr(config, "num_key_value_heads", None) or heads, size, size, dtype)
