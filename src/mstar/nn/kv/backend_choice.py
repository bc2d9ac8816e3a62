"""Choice of the attention backend of a decoder, by the name that its component sets or by its device.

On a CUDA device without a name it is the first one that is installed and can run the network: `flashinfer`, `triton`,
`torch`. What FlashInfer cannot run is known from dtypes before the network is loaded, and from its layers after.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from mstar.errors import LoadError
from mstar.nn.kv.attention_backend import AttentionBackend, LayerNeeds
from mstar.nn.kv.cache_dtype import FP8
from mstar.nn.kv.torch_attention import TORCH_ATTENTION

_NAMES = ("torch", "triton", "flashinfer")
_FP8_CAPABILITY = (8, 9)
"""First compute capability with float8_e4m3fn."""


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend, and why it is not the one that its device would have first."""

    backend: AttentionBackend
    reason: str = ""
    fallback: AttentionBackend | None = None
    """The next one, if the layers of the network turn out to need it. None if the operator named the backend."""

    def describe(self) -> str:
        """The backend in words, with the reason."""
        return f"attention backend {self.backend.name}" + (f", because {self.reason}" if self.reason else "")

    def for_layers(self, needs: Collection[LayerNeeds]) -> BackendChoice:
        """The choice for a network with these layers. Raises LoadError if the operator chose another one."""
        problem = self.backend.unsupported(needs)
        if not problem:
            return self
        reason = f"{self.backend.name} does not support {problem}"
        if self.fallback is None:
            fix = "set attention_backend='triton', or remove `attention_backend`"
            raise LoadError(f"the attention backend {reason}\n  fix: {fix}")
        return BackendChoice(self.fallback, reason)


def choose_backend(
    name: str | None, dtype: torch.dtype, device: torch.device, cache_dtype: torch.dtype | None = None
) -> BackendChoice:
    """The backend with this name, or without one that of the device, for a network and a KV cache with these dtypes.

    Raises LoadError if it does not run there.
    """
    cache_dtype = cache_dtype or dtype
    if name is None:
        return _device_backend(dtype, device, cache_dtype)
    if name == "torch":
        return BackendChoice(_torch_backend(dtype, device, cache_dtype))
    if name == "triton":
        return BackendChoice(_triton_backend(dtype, device, cache_dtype))
    if name == "flashinfer":
        return BackendChoice(_flashinfer_backend(dtype, device, cache_dtype))
    raise LoadError(f"unknown attention backend {name!r}\n  fix: use one of {', '.join(_NAMES)}")


def _device_backend(dtype: torch.dtype, device: torch.device, cache_dtype: torch.dtype) -> BackendChoice:
    if device.type != "cuda" or dtype is torch.float64:
        return BackendChoice(_torch_backend(dtype, device, cache_dtype))
    is_triton = find_spec("triton") is not None
    after = (_triton_backend if is_triton else _torch_backend)(dtype, device, cache_dtype)
    if find_spec("flashinfer") is None:
        return BackendChoice(after)
    try:
        return BackendChoice(_flashinfer_backend(dtype, device, cache_dtype, after), fallback=after)
    except LoadError as error:
        return BackendChoice(after, str(error).splitlines()[0].removeprefix("the attention backend "))


def _torch_backend(dtype: torch.dtype, device: torch.device, cache_dtype: torch.dtype) -> AttentionBackend:
    if device.type == "cpu" and cache_dtype is not dtype:
        problem = (
            f"the attention kernels of CPUs read a KV cache in the dtype of the network, {dtype}, not {cache_dtype}"
        )
        raise LoadError(f"{problem}\n  fix: remove `kv_cache_dtype`, or load the network in that dtype")
    return TORCH_ATTENTION


def _triton_backend(dtype: torch.dtype, device: torch.device, cache_dtype: torch.dtype) -> AttentionBackend:
    try:
        from triton import knobs

        from mstar.nn.triton.triton_attention import CACHE_DTYPES, DTYPES, TritonAttention
    except ImportError as error:
        fix = "pip install 'mstar-serve[triton]', or set attention_backend='torch'"
        raise LoadError(f"the attention backend triton needs triton: {error}\n  fix: {fix}") from error
    if dtype not in DTYPES or cache_dtype not in CACHE_DTYPES:
        fix = "load the network in float32, bfloat16 or float16, or set attention_backend='torch'"
        wrong = cache_dtype if dtype in DTYPES else dtype
        raise LoadError(f"the attention backend triton does not support {wrong}\n  fix: {fix}")
    is_interpreted = device.type == "cpu" and knobs.runtime.interpret
    if device.type != "cuda" and not is_interpreted:
        fix = "set attention_backend='torch', or, to test the kernels on a CPU, TRITON_INTERPRET=1 in the environment"
        raise LoadError(f"the attention backend triton does not run on {device}\n  fix: {fix}")
    if cache_dtype is FP8 and device.type == "cuda" and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        problem = (
            f"the attention backend triton does not support fp8 on {device}, whose compute capability is below 8.9"
        )
        raise LoadError(f"{problem}\n  fix: remove `kv_cache_dtype`")
    return TritonAttention()


def _flashinfer_backend(
    dtype: torch.dtype, device: torch.device, cache_dtype: torch.dtype, fallback: AttentionBackend | None = None
) -> AttentionBackend:
    try:
        from mstar.nn.kv.flashinfer_attention import DTYPES, FlashInferAttention
    except ImportError as error:
        fix = "pip install 'mstar-serve[flashinfer]', or set attention_backend='triton'"
        raise LoadError(f"the attention backend flashinfer needs flashinfer: {error}\n  fix: {fix}") from error
    if device.type == "cpu":
        fix = "set attention_backend='torch', or a device in the placement"
        raise LoadError(f"the attention backend flashinfer does not run on {device}\n  fix: {fix}")
    if dtype not in DTYPES or cache_dtype not in {dtype, FP8}:
        fix = "load the network in bfloat16 or float16, with `kv_cache_dtype` the same or fp8, or set another backend"
        wrong = f"{dtype} with a KV cache in {cache_dtype}" if dtype in DTYPES else dtype
        raise LoadError(f"the attention backend flashinfer does not support {wrong}\n  fix: {fix}")
    return FlashInferAttention(device, fallback or TORCH_ATTENTION)
