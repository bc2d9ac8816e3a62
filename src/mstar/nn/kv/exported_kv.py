"""A KV cache, or a part of it, as a value that can be sent to another worker."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mstar.nn.lm.sampler_state import SamplerSnapshot
from mstar.requests import Adapter


@dataclass(frozen=True, slots=True)
class ExportedPages:
    """Full pages of a KV cache, which are sent while the rest of it is computed."""

    keys: tuple[bytes, ...]
    """Their keys in the prefix cache."""
    page_size: int
    """Positions of a page."""
    data: Tensor
    """Keys and values of all layers, as bytes."""


@dataclass(frozen=True, slots=True)
class ExportedKV:
    """A serializable KV cache, for migration to another instance of its component."""

    length: int
    tenant: str
    embeddings: tuple[tuple[int, Tensor, int], ...]
    sampler: SamplerSnapshot
    data: Tensor
    """Keys and values of all layers, as bytes."""
    cross_attention_cache: ExportedKV | None = None
    """Cross-attention part of an encoder-decoder."""
    forgettings: tuple[tuple[int, int], ...] = ()
    """When encoder positions of a cross-attention part were released, as in `CrossAttentionKV`."""
    sent_ahead: int = 0
    """Number of its first positions that are not in `data`, because they were sent before as `ExportedPages`."""
    adapter: Adapter | None = None
    """LoRA adapter of its request."""
