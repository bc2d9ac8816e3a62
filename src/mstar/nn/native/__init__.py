"""Native fused CPU kernels for decoders, compiled from `kernels.cpp` at first use for the CPU of this machine
(`mstar.nn.kernel_library`).

The functions take torch tensors in the memory layout of their docstrings. They check nothing, because they are the
innermost calls of the engine. Without a C++ compiler, or without a directory for the compiled library, there are no
kernels: one log line says so, and callers use torch instead, which is slower.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import subprocess
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mstar.nn.cache_directory import cache_directory
from mstar.nn.kernel_library import compile_library, find_compiler, library_name, private_temporary_directory

_SUFFIX = {torch.bfloat16: "bf16", torch.float32: "float"}
POINTER = ctypes.c_void_p
LONG = ctypes.c_long
FLOAT = ctypes.c_float
_ARGUMENTS = {
    "rms_norm": [POINTER] * 5 + [LONG] * 2 + [FLOAT],
    "silu_mul": [POINTER] * 2 + [LONG] * 2,
    "argmax": [POINTER] * 2 + [LONG] * 3,
    "rotate": [POINTER] * 4 + [LONG] * 4,
    "linear": [POINTER] * 4 + [LONG] * 3,
    "run_layers": [POINTER] * 2 + [LONG] + [POINTER] * 4 + [LONG],
    "run_blocks": [POINTER] * 2 + [LONG] + [POINTER] * 4,
    "linear_int8": [POINTER] * 5 + [LONG] * 4,
    "add_low_rank": [POINTER] * 4 + [LONG] * 4,
    "write": [POINTER] * 5 + [LONG] * 4,
    "attend": [POINTER] * 5 + [LONG] * 4 + [FLOAT, LONG],
    "attend_joined": [POINTER] * 7 + [LONG] * 3 + [FLOAT, LONG],
}

log = logging.getLogger("mstar.nn")


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The compiled kernels, from a cache if possible. torch must be imported first: they share its threads."""
    compiler = find_compiler()
    if compiler is None:
        log.warning("no C++ compiler, so steps are slower; fix: install g++")
        return None
    name, problems = library_name(compiler), list[str]()
    for find_directory in (cache_directory, private_temporary_directory):
        try:
            path = find_directory() / name
            if not path.exists():
                compile_library(compiler, path)
            library = ctypes.CDLL(str(path))
        except (OSError, RuntimeError) as error:  # read-only, full, mounted without exec, or no home directory
            problems.append(str(error))
            continue
        except subprocess.CalledProcessError as error:
            reason = " ".join(error.stderr[:500].split())
            problem = "%s cannot compile the native kernels, so steps are slower; fix: install a current g++ (%s)"
            log.warning(problem, compiler, reason)
            return None
        if problems:
            log.warning("native kernels are in %s: %s", path.parent, problems[0])
        return library
    problem = "the native kernels cannot be stored, so steps are slower; fix: give the process a home directory that it"
    log.warning("%s can write (%s)", problem, "; ".join(problems))
    return None


def version() -> str:
    """Name of the library in use, with a digest of the kernels and the CPU; empty without a compiler."""
    compiler = find_compiler()
    return "" if compiler is None or _library() is None else library_name(compiler)


@functools.cache
def kernel(name: str, dtype: torch.dtype) -> Callable[..., Any]:
    """A kernel for tensors of this dtype."""
    library = _library()
    assert library is not None
    function: Any = getattr(library, f"{name}_{_SUFFIX[dtype]}")
    function.argtypes, function.restype = _ARGUMENTS[name], LONG if name == "argmax" else None
    return function


def is_native(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there are kernels for tensors of this dtype on this device."""
    return dtype in _SUFFIX and device.type == "cpu" and _library() is not None


@functools.cache
def supports_bf16_matmul() -> bool:
    """Whether this CPU has bf16 matrix instructions. Without them, the products of torch in bf16 are slow."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def has_row_products(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether `linear` computes the products of this dtype: the result of a row does not depend on other rows.

    With bf16 instructions, those of oneDNN are faster, and depend on them.
    """
    return is_native(dtype, device) and (dtype is torch.float32 or not supports_bf16_matmul())


@functools.cache
def supports_int8_matmul() -> bool:
    """Whether this CPU has int8 matrix or vector instructions. Without them, `linear_int8` is slower than bf16."""
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_vnni_supported()


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / rms(x) * weight over the last dimension."""
    x = x.contiguous()
    out, size = torch.empty_like(x), x.shape[-1]
    run = kernel("rms_norm", x.dtype)
    run(out.data_ptr(), None, x.data_ptr(), None, weight.data_ptr(), x.numel() // size, size, epsilon)
    return out


def add_norm(x: Tensor, more: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """x + more, and its RMS norm."""
    x, more = x.contiguous(), more.contiguous()
    total, out, size = torch.empty_like(x), torch.empty_like(x), x.shape[-1]
    pointers = (out.data_ptr(), total.data_ptr(), x.data_ptr(), more.data_ptr(), weight.data_ptr())
    kernel("rms_norm", x.dtype)(*pointers, x.numel() // size, size, epsilon)
    return total, out


def silu_mul(x: Tensor) -> Tensor:
    """SwiGLU: silu of the first half of the last dimension times its second half."""
    x = x.contiguous()
    size = x.shape[-1] // 2
    out = torch.empty((*x.shape[:-1], size), dtype=x.dtype)
    kernel("silu_mul", x.dtype)(out.data_ptr(), x.data_ptr(), out.numel() // size, size)
    return out


def argmax(x: Tensor) -> tuple[Tensor, bool]:
    """The first maximum, or NaN, of each row: [rows, size] to [rows, 1]; and whether all of them are finite."""
    rows, size = x.shape
    out = torch.empty((rows, 1), dtype=torch.int64)
    wrong = kernel("argmax", x.dtype)(out.data_ptr(), x.data_ptr(), rows, size, x.stride(0))
    return out, not wrong


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary embedding. x is [1, heads, tokens, size]; the angles are [..., tokens, size].

    The result has the shape of x, with the memory layout [tokens, heads, size].
    """
    _, heads, tokens, size = x.shape
    if x.stride(1) != size or x.stride(3) != 1:
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    out = torch.empty((1, tokens, heads, size), dtype=x.dtype)
    run = kernel("rotate", x.dtype)
    run(out.data_ptr(), x.data_ptr(), cosines.data_ptr(), sines.data_ptr(), tokens, heads, size, x.stride(2))
    return out.transpose(1, 2)


_TILE_COLUMNS = 32
"""Number of columns of a tile."""


def to_tiles(weight: Tensor) -> Tensor:
    """Pack a matrix, [out, in], for `linear`: [tiles, in, columns], padded with zeros.

    In bf16 the columns of the two halves of a tile are interleaved.
    """
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -len(weight) % _TILE_COLUMNS))
    whole = padded.view(-1, _TILE_COLUMNS, weight.shape[1]).transpose(1, 2)
    if weight.dtype is torch.bfloat16:
        whole = whole.unflatten(2, (2, _TILE_COLUMNS // 2)).transpose(2, 3).flatten(2)
    return whole.contiguous()


def linear(x: Tensor, tiles: Tensor, columns: int, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias over the last dimension of x. The result of a row does not depend on other rows."""
    x = x.contiguous()
    size = x.shape[-1]
    out = torch.empty((*x.shape[:-1], columns), dtype=x.dtype)
    run = kernel("linear", x.dtype)
    pointers = (out.data_ptr(), x.data_ptr(), tiles.data_ptr(), None if bias is None else bias.data_ptr())
    run(*pointers, x.numel() // size, size, columns)
    return out


def linear_int8(x: Tensor, tiles: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias in int8, with dynamic quantization of x. See `mstar.nn.compile.int8`.

    A row of x with infinity or NaN gives NaN.
    """
    x = x.contiguous()
    size, columns = x.shape[-1], len(scales)
    out = torch.empty((*x.shape[:-1], columns), dtype=x.dtype)
    run = kernel("linear_int8", x.dtype)
    pointers = (out.data_ptr(), x.data_ptr(), tiles.data_ptr(), scales.data_ptr())
    run(*pointers, None if bias is None else bias.data_ptr(), x.numel() // size, size, columns, tiles.shape[1] * 64)
    return out


def add_low_rank(out: Tensor, x: Tensor, adapters: Tensor, updates: int, parts: int) -> None:
    """Add the low-rank updates of their adapters to the first rows of the result of a product, in place.

    `adapters` is the number of the adapter of each row, or -1; `updates` is the address of `parts` structs LowRank of
    low_rank.h for each adapter. The result of a row does not depend on other rows.
    """
    x = x.contiguous()
    pointers = (out.data_ptr(), x.data_ptr(), adapters.data_ptr(), updates)
    kernel("add_low_rank", x.dtype)(*pointers, parts, len(adapters), x.shape[-1], out.shape[-1])


def write(memory: tuple[Tensor, Tensor], key: Tensor, value: Tensor, places: Tensor) -> None:
    """Write new keys and values, [tokens, heads, size] each, to their slots in [positions, heads, size]."""
    key, value = _rowwise(key), _rowwise(value)
    keys, values = memory
    row = keys.stride(0)
    run = kernel("write", keys.dtype)
    pointers = (keys.data_ptr(), values.data_ptr(), key.data_ptr(), value.data_ptr(), places.data_ptr())
    run(*pointers, len(places), row, key.stride(0), value.stride(0))


class Pages(ctypes.Structure):
    """Page table and tokens of a forward: struct Pages of attention.h. The tensors must outlive it."""

    _fields_ = (
        ("table", POINTER),
        ("width", LONG),
        ("page_size", LONG),
        ("request", POINTER),
        ("seen", POINTER),
        ("places", POINTER),
        ("tokens", LONG),
    )


def attend(
    out: Tensor, query: Tensor, memory: tuple[Tensor, Tensor], pages: Pages, scaling: float, window: int
) -> None:
    """Paged attention of all tokens into `out`, [tokens, heads, size]. The query is [1, heads, tokens, size].

    The result of a token does not depend on other tokens, and not on how many of them are in one call.
    """
    query = _rowwise(query[0].transpose(0, 1))
    keys, values = memory
    run = kernel("attend", query.dtype)
    pointers = (out.data_ptr(), query.data_ptr(), keys.data_ptr(), values.data_ptr(), ctypes.addressof(pages))
    run(*pointers, query.shape[1], keys.shape[1], query.shape[2], query.stride(0), scaling, window)


def attend_joined(
    joined: Tensor, angles: tuple[Tensor, Tensor], memory: tuple[Tensor, Tensor], pages: Pages, rule: tuple[float, int]
) -> Tensor:
    """Rotary embedding, KV cache write and paged attention for the output of a fused QKV projection.

    `joined` is [1, tokens, (heads + 2 key heads) * size], contiguous; the result is [1, tokens, heads * size].
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
    """[tokens, heads, size] with the heads of a token contiguous; copied if necessary."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
