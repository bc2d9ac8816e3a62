"""Choice of the attention backend of a decoder, by the name that its component sets or by its device."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from mstar.errors import LoadError
from mstar.nn.kv.attention_backend import AttentionBackend
from mstar.nn.kv.torch_attention import TORCH_ATTENTION

_NAMES = ("torch", "triton")


def choose_backend(name: str | None, dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    """The backend with this name. None: `triton` for CUDA devices if it is installed, otherwise `torch`.

    Raises LoadError if it does not run on this device.
    """
    if name is None:
        is_triton = device.type == "cuda" and find_spec("triton") is not None and dtype is not torch.float64
        name = "triton" if is_triton else "torch"
    if name == "torch":
        return TORCH_ATTENTION
    if name not in _NAMES:
        raise LoadError(f"unknown attention backend {name!r}\n  fix: use one of {', '.join(_NAMES)}")
    return _triton_backend(dtype, device)


def _triton_backend(dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    try:
        from triton import knobs

        from mstar.nn.triton.triton_attention import DTYPES, TritonAttention
    except ImportError as error:
        fix = "pip install 'mstar-serve[triton]', or set attention_backend='torch'"
        raise LoadError(f"the attention backend triton needs triton: {error}\n  fix: {fix}") from error
    if dtype not in DTYPES:
        fix = "load the network in float32, bfloat16 or float16, or set attention_backend='torch'"
        raise LoadError(f"the attention backend triton does not support {dtype}\n  fix: {fix}")
    is_interpreted = device.type == "cpu" and knobs.runtime.interpret
    if device.type != "cuda" and not is_interpreted:
        fix = "set attention_backend='torch', or, to test the kernels on a CPU, TRITON_INTERPRET=1 in the environment"
        raise LoadError(f"the attention backend triton does not run on {device}\n  fix: {fix}")
    return TritonAttention()
