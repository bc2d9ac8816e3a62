"""Fused CPU kernels for decoders: built from `kernels.cpp` on first use, for the processor at hand.

Called with torch tensors in memory that has the layout each function states; nothing is checked here, because these
calls are the engine's innermost ones. Without a C++ compiler there are no kernels, and callers take torch's own way.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_SOURCE = Path(__file__).with_name("kernels.cpp")
_SOURCE_FILES = ("kernels.cpp", "linear.h", "layers.h", "dense.h", "blocks.h", "int8.h")
_FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-w"),
    # What -ffast-math stands for, without the linker's part in it: that would change how the whole process rounds.
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
    *("-fassociative-math", "-freciprocal-math", "-ffinite-math-only"),
)
_VECTOR_FLAGS = ("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()
"""Vectors as long as the processor's: of its own accord g++ takes half of it."""
_SUFFIX = {torch.bfloat16: "bf16", torch.float32: "float"}
POINTER, LONG, FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
_ARGUMENTS = {
    "rms_norm": [POINTER] * 5 + [LONG] * 2 + [FLOAT],
    "silu_mul": [POINTER] * 2 + [LONG] * 2,
    "argmax": [POINTER] * 2 + [LONG] * 3,
    "rotate": [POINTER] * 4 + [LONG] * 4,
    "linear": [POINTER] * 4 + [LONG] * 3,
    "run_layers": [POINTER] * 2 + [LONG] + [POINTER] * 4 + [LONG],
    "run_blocks": [POINTER] * 2 + [LONG] + [POINTER] * 4,
    "linear_int8": [POINTER] * 5 + [LONG] * 4,
    "write": [POINTER] * 5 + [LONG] * 4,
    "attend": [POINTER] * 5 + [LONG] * 4 + [FLOAT, LONG],
    "attend_joined": [POINTER] * 7 + [LONG] * 3 + [FLOAT, LONG],
}


class NoCompiler(UserWarning):
    """The fused kernels could not be built, so steps are slower."""


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The kernels, built unless they were before. torch is imported first: they share its threads."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        warnings.warn("no C++ compiler was found, so steps are slower\n  fix: install g++", NoCompiler, stacklevel=2)
        return None
    path = _cache() / f"kernels-{_digest(compiler)}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            made = Path(scratch) / path.name
            done = subprocess.run(
                [compiler, *_FLAGS, *_VECTOR_FLAGS, "-o", made, _SOURCE], capture_output=True, text=True, check=False
            )
            if done.returncode:
                said = f"{compiler} could not build the fused kernels, so steps are slower: {done.stderr[:500]}"
                warnings.warn(f"{said}\n  fix: install a current g++", NoCompiler, stacklevel=2)
                return None
            made.replace(path)  # at once, so that no other process ever loads half a file
    return ctypes.CDLL(str(path))


def _cache() -> Path:
    return Path.home() / ".cache" / "mstar"


def _digest(compiler: str) -> str:
    """What the result depends on: the source, how it is built, by what, and for which processor."""
    told = Path("/proc/cpuinfo")
    features = [line for line in told.read_text().splitlines() if line.startswith(("flags", "Features", "model name"))]
    sources = [_SOURCE.with_name(name).read_text() for name in _SOURCE_FILES]
    parts = (*sources, *_FLAGS, *_VECTOR_FLAGS, compiler, platform.machine(), *features[:2])
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


@functools.cache
def kernel(name: str, dtype: torch.dtype) -> Callable[..., Any]:
    """A function of the kernels, for tensors like this."""
    library = _library()
    assert library is not None
    found: Any = getattr(library, f"{name}_{_SUFFIX[dtype]}")
    found.argtypes, found.restype = _ARGUMENTS[name], LONG if name == "argmax" else None
    return found


def is_native(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there are kernels for tensors like this."""
    return dtype in _SUFFIX and device.type == "cpu" and _library() is not None


@functools.cache
def supports_bf16_matmul() -> bool:
    """Whether this processor has instructions for products of bf16. If not, libraries are slow with it."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / rms(x) * weight over the last dimension."""
    x = x.contiguous()
    out, size = torch.empty_like(x), x.shape[-1]
    run = kernel("rms_norm", x.dtype)
    run(out.data_ptr(), None, x.data_ptr(), None, weight.data_ptr(), x.numel() // size, size, epsilon)
    return out


def add_norm(x: Tensor, more: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """x + more, and its norm."""
    x, more = x.contiguous(), more.contiguous()
    total, out, size = torch.empty_like(x), torch.empty_like(x), x.shape[-1]
    pointers = (out.data_ptr(), total.data_ptr(), x.data_ptr(), more.data_ptr(), weight.data_ptr())
    kernel("rms_norm", x.dtype)(*pointers, x.numel() // size, size, epsilon)
    return total, out


def silu_mul(x: Tensor) -> Tensor:
    """silu of the first half of the last dimension, times its second half."""
    x = x.contiguous()
    size = x.shape[-1] // 2
    out = torch.empty((*x.shape[:-1], size), dtype=x.dtype)
    kernel("silu_mul", x.dtype)(out.data_ptr(), x.data_ptr(), out.numel() // size, size)
    return out


def argmax(x: Tensor) -> tuple[Tensor, bool]:
    """The first of the largest numbers of each row, or of its NaNs: [rows, size] to [rows, 1]; if all are finite."""
    rows, size = x.shape
    out = torch.empty((rows, 1), dtype=torch.int64)
    wrong = kernel("argmax", x.dtype)(out.data_ptr(), x.data_ptr(), rows, size, x.stride(0))
    return out, not wrong


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary positions. x is [1, heads, tokens, size]; the angles are [tokens, size], whatever leads.

    What is given back has the shape of x, in memory as [tokens, heads, size].
    """
    _, heads, tokens, size = x.shape
    if x.stride(1) != size or x.stride(3) != 1:
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    out = torch.empty((1, tokens, heads, size), dtype=x.dtype)
    run = kernel("rotate", x.dtype)
    run(out.data_ptr(), x.data_ptr(), cosines.data_ptr(), sines.data_ptr(), tokens, heads, size, x.stride(2))
    return out.transpose(1, 2)


_TILE_COLUMNS = 32
"""So many columns a tile of a matrix has."""


def to_tiles(weight: Tensor) -> Tensor:
    """A matrix, [out, in], in the order in which `linear` reads it: [tiles, in, columns], zeros up to the end.

    In bf16 a column of the first half of a tile and one of the second alternate.
    """
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -len(weight) % _TILE_COLUMNS))
    whole = padded.view(-1, _TILE_COLUMNS, weight.shape[1]).transpose(1, 2)
    if weight.dtype is torch.bfloat16:
        whole = whole.unflatten(2, (2, _TILE_COLUMNS // 2)).transpose(2, 3).flatten(2)
    return whole.contiguous()


def linear(x: Tensor, tiles: Tensor, columns: int, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias over the last dimension of x. No row's result depends on the others."""
    x = x.contiguous()
    size = x.shape[-1]
    out = torch.empty((*x.shape[:-1], columns), dtype=x.dtype)
    run = kernel("linear", x.dtype)
    pointers = (out.data_ptr(), x.data_ptr(), tiles.data_ptr(), None if bias is None else bias.data_ptr())
    run(*pointers, x.numel() // size, size, columns)
    return out


def linear_int8(x: Tensor, tiles: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias over the last dimension of x, whose rows become integers too. See `mstar.nn.compile.int8`.

    A row with an infinity or a NaN gives NaNs.
    """
    x = x.contiguous()
    size, columns = x.shape[-1], len(scales)
    out = torch.empty((*x.shape[:-1], columns), dtype=x.dtype)
    run = kernel("linear_int8", x.dtype)
    pointers = (out.data_ptr(), x.data_ptr(), tiles.data_ptr(), scales.data_ptr())
    run(*pointers, None if bias is None else bias.data_ptr(), x.numel() // size, size, columns, tiles.shape[1] * 64)
    return out


def write(memory: tuple[Tensor, Tensor], key: Tensor, value: Tensor, places: Tensor) -> None:
    """Put new keys and values, [tokens, heads, size] each, at their places in [positions, heads, size]."""
    key, value = _rowwise(key), _rowwise(value)
    keys, values = memory
    row = keys.stride(0)
    run = kernel("write", keys.dtype)
    pointers = (keys.data_ptr(), values.data_ptr(), key.data_ptr(), value.data_ptr(), places.data_ptr())
    run(*pointers, len(places), row, key.stride(0), value.stride(0))


class Pages(ctypes.Structure):
    """What `attend` must know of a forward: see the kernels. The tensors must outlive it."""

    _fields_ = (
        ("table", POINTER),
        ("width", LONG),
        ("page_size", LONG),
        ("request", POINTER),
        ("seen", POINTER),
        ("chosen", POINTER),
        ("count", LONG),
        ("places", POINTER),
        ("tokens", LONG),
    )


def attend(
    out: Tensor, query: Tensor, memory: tuple[Tensor, Tensor], pages: Pages, scaling: float, window: int
) -> None:
    """Fill in [tokens, heads, size] for the chosen tokens of a forward. The query is [1, heads, tokens, size]."""
    query = _rowwise(query[0].transpose(0, 1))
    keys, values = memory
    run = kernel("attend", query.dtype)
    pointers = (out.data_ptr(), query.data_ptr(), keys.data_ptr(), values.data_ptr(), ctypes.addressof(pages))
    run(*pointers, query.shape[1], keys.shape[1], query.shape[2], query.stride(0), scaling, window)


def attend_joined(
    joined: Tensor, angles: tuple[Tensor, Tensor], memory: tuple[Tensor, Tensor], pages: Pages, rule: tuple[float, int]
) -> Tensor:
    """Rotate, write and attend, for tokens whose queries, keys and values lie in one row each.

    joined is [1, tokens, (heads + 2 key heads) * size], contiguous; what is given back is [1, tokens, heads * size].
    """
    keys, values = memory
    key_heads, size = keys.shape[1:]
    width = joined.shape[2] - 2 * key_heads * size
    out = torch.empty((1, joined.shape[1], width), dtype=joined.dtype)
    cosines, sines = angles
    pointers = (out.data_ptr(), joined.data_ptr(), cosines.data_ptr(), sines.data_ptr())
    run = kernel("attend_joined", joined.dtype)
    run(*pointers, keys.data_ptr(), values.data_ptr(), ctypes.addressof(pages), width // size, key_heads, size, *rule)
    return out


def _rowwise(x: Tensor) -> Tensor:
    """[tokens, heads, size] with each token's heads together, as they are or copied."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
