"""Dtype of the keys and values in a KV cache, which a component or its placement sets (`kv_cache_dtype`).

By default it is that of the network. `fp8` is float8_e4m3fn with a scale of 1, as in vLLM: values are rounded to three
bits, and those beyond its range become the largest one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mstar.errors import LoadError

FP8 = torch.float8_e4m3fn
CACHE_DTYPES = {"fp8": FP8, "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_FP8_LIMIT = torch.finfo(FP8).max


def parse_cache_dtype(name: str) -> torch.dtype:
    """The dtype with this name. Raises LoadError."""
    if name not in CACHE_DTYPES:
        raise LoadError(f"unknown KV cache dtype {name!r}\n  fix: use one of {', '.join(CACHE_DTYPES)}")
    return CACHE_DTYPES[name]


def to_cache_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys or values as a KV cache of this dtype stores them."""
    if x.dtype is dtype:
        return x
    return (x.clamp(-_FP8_LIMIT, _FP8_LIMIT) if dtype is FP8 else x).to(dtype)
