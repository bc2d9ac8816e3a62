"""Compiles the Triton kernels to machine code of NVIDIA GPUs, without a GPU: the assembler is part of triton.

It shows that the kernels compile for an architecture and fit into its shared memory, nothing about speed or results.
Run as `python -m tools.build_cubins DIRECTORY` in the repository root; it writes one cubin per kernel and architecture.
"""

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mstar.nn.triton import LAUNCH_OPTIONS, paged_attention, token_draws
from mstar.nn.triton.triton_attention import MAX_SPLITS, PREFILL_TOKENS, block_shape, tile_positions

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
"""Shared memory of one program, by architecture: A100, H100, B200."""
_EM_CUDA = 190
_ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
_FP8_ARCHITECTURE = 89
"""First architecture with float8_e4m3fn."""


@dataclass(frozen=True)
class Variant:
    """Attention of a model family: query heads per key head, size of a head, and what its layers have."""

    name: str
    dtype: str
    group: int
    size: int
    tokens: int = 1
    is_split: bool = False
    has_softcap: bool = False
    has_sinks: bool = False
    has_window_1: bool = False
    """Whether its sliding window is 1: a launch makes such an integer a constant."""
    cache_dtype: str = ""
    """Dtype of the KV cache; empty for that of the network."""

    def runs_on(self, architecture: int) -> bool:
        """Whether an architecture has its dtypes."""
        return self.cache_dtype != "fp8e4nv" or architecture >= _FP8_ARCHITECTURE


VARIANTS = (
    Variant("llama3_decode", "bf16", 4, 128),
    Variant("llama3_decode_split", "bf16", 4, 128, is_split=True),
    Variant("llama3_prefill", "bf16", 4, 128, tokens=PREFILL_TOKENS),
    Variant("smollm2_decode_float32", "fp32", 3, 64),
    Variant("smollm2_prefill_float32", "fp32", 3, 64, tokens=PREFILL_TOKENS),
    Variant("gemma2_prefill", "bf16", 2, 256, tokens=PREFILL_TOKENS, has_softcap=True),
    Variant("gpt_oss_decode_split", "bf16", 8, 64, is_split=True, has_sinks=True),
    Variant("phi3_prefill_float16", "fp16", 1, 96, tokens=PREFILL_TOKENS),
    Variant("window_of_1_decode", "bf16", 2, 128, has_window_1=True),
    Variant("llama3_decode_fp8_cache", "bf16", 4, 128, cache_dtype="fp8e4nv"),
    Variant("llama3_prefill_fp8_cache", "bf16", 4, 128, tokens=PREFILL_TOKENS, cache_dtype="fp8e4nv"),
)
_PAGE_SIZE = 16


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel."""

    name: str
    code: bytes
    shared_bytes: int

    @property
    def architecture(self) -> int:
        """The architecture in the header of the ELF file; 0 if it is no machine code of a GPU."""
        is_elf = self.code[:4] == b"\x7fELF" and struct.unpack_from("<H", self.code, 18)[0] == _EM_CUDA
        if not is_elf:
            return 0
        flags, version = struct.unpack_from("<I", self.code, 48)[0], self.code[8]
        return flags >> 8 & 0xFF if version >= 8 else flags & 0xFF


def compile_variant(variant: Variant, architecture: int) -> Iterator[Cubin]:
    """Compile the kernels of one layer."""
    ones = {"window": 1} if variant.has_window_1 else {}
    pointer, block = f"*{variant.dtype}", max(16, triton.next_power_of_2(variant.size))
    sizes = {"KEY_SIZE": variant.size, "KEY_BLOCK": block, "VALUE_SIZE": variant.size, "VALUE_BLOCK": block}
    caches = dict.fromkeys(("keys", "values"), f"*{variant.cache_dtype or variant.dtype}")
    write = {**caches, "key": pointer, "value": pointer, "places": "*i64"}
    write_constants = {"HEADS": 2, **sizes, "TOKENS": 16}
    yield _compile(paged_attention.write_pages, variant.name, write, write_constants, architecture)
    members, rows = block_shape(variant.group, variant.tokens)
    partial = "*fp32" if variant.is_split else pointer
    attend = caches | dict.fromkeys(("query", "sinks"), pointer)
    attend |= {"out": partial, "logsumexps": partial, "scaling": "fp32", "softcap": "fp32"}
    attend |= dict.fromkeys(("page_table", "seen", "blocks"), "*i64")
    constants = {"HEADS": 2, "GROUP": variant.group, "MEMBERS": members, "ROWS": rows, **sizes, "PAGE_SIZE": _PAGE_SIZE}
    constants |= {
        "POSITIONS": tile_positions(variant.size, _ELEMENT_BYTES[variant.dtype]),
        "IS_SPLIT": variant.is_split,
    }
    constants |= {"HAS_SOFTCAP": variant.has_softcap, "HAS_SINKS": variant.has_sinks}
    yield _compile(paged_attention.attend, variant.name, attend, constants | ones, architecture)
    if variant.is_split:
        merge = {"out": pointer, "parts": "*fp32", "logsumexps": "*fp32"}
        sizes = {"MAX_SPLITS": MAX_SPLITS, "VALUE_SIZE": variant.size, "VALUE_BLOCK": block}
        yield _compile(paged_attention.merge_splits, variant.name, merge, sizes, architecture)


def compile_draws(architecture: int) -> Cubin:
    """Compile the kernel that draws tokens."""
    types = {"drawn": "*i64", "scores": "*fp32", "keys": "*i64", "top_ks": "*i64"}
    types |= dict.fromkeys(("temperatures", "top_ps", "min_ps"), "*fp64")
    return _compile(token_draws.draw, "draws", types, {"BLOCK": 4096}, architecture)


def _compile(function: Any, name: str, types: dict[str, str], constants: dict[str, Any], architecture: int) -> Cubin:
    """Compile a kernel as a launch does; arguments without a type are integers, and tensors of torch are aligned."""
    names = function.arg_names
    unaligned = {param.name for param in function.params if param.do_not_specialize_on_alignment}
    signature = {arg: "constexpr" if arg in constants else types.get(arg, "i32") for arg in names}
    values = {(names.index(arg),): value for arg, value in constants.items()}
    pointers = [arg for arg, kind in signature.items() if kind[0] == "*" and arg not in unaligned]
    aligned = {(names.index(arg),): [["tt.divisibility", 16]] for arg in pointers}
    source = ASTSource(fn=function, signature=signature, constexprs=values, attrs=aligned)
    compiled: Any = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=LAUNCH_OPTIONS)
    file_name = f"{name}.{function.__name__}.sm_{architecture}"
    return Cubin(file_name, compiled.asm["cubin"], compiled.metadata.shared)


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for architecture in SHARED_BYTES:
        variants = [variant for variant in VARIANTS if variant.runs_on(architecture)]
        layers = [cubin for variant in variants for cubin in compile_variant(variant, architecture)]
        for cubin in (*layers, compile_draws(architecture)):
            (directory / f"{cubin.name}.cubin").write_bytes(cubin.code)
            print(f"{cubin.name}: {len(cubin.code)} bytes of ELF, {cubin.shared_bytes} bytes of shared memory")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
