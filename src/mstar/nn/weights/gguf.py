"""GGUF loader: a Llama as a transformers model, and its tokenizer.

Quantized weights are dequantized to floats. Only the architecture `llama` with SmolLM's tokenizer (byte-level BPE,
single digits) is supported; anything else is rejected, because a wrong guess generates fluent nonsense.

Loading only the tokenizer, for detokenization, needs neither numpy nor torch. The header is parsed here, because the
package `gguf` takes seconds for the vocabulary in it; dequantization is left to that package.
"""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from mstar.errors import LoadError
from mstar.nn.weights.progress import Progress, ignore_progress

if TYPE_CHECKING:
    from numpy import ndarray
    from tokenizers import Tokenizer
    from torch import Tensor
    from transformers import PreTrainedModel

_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_REQUIRED_FIELDS = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
"""Metadata fields that a supported file must have, with their values."""
_CONTROL_TOKEN = 3
"""Token type of control tokens, such as the end of a turn."""
_STRUCT_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""`struct` format of each numeric GGUF type."""
_TEXT = 8
_ARRAY = 9
_ALIGNMENT_BYTES = 32
"""Default alignment of tensors."""
_DECODE_ERRORS = (ValueError, LookupError, struct.error, OverflowError, MemoryError)
"""Exceptions that malformed files cause."""


class _Tensor(NamedTuple):
    """Header entry of a tensor."""

    name: str
    shape: tuple[int, ...]
    kind: int
    """GGML quantization type."""
    offset: int
    """Bytes from the start of the tensor data."""

    @property
    def size(self) -> int:
        """Size in bytes. Raises one of _DECODE_ERRORS."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        block_numbers, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(self.kind)]
        return prod(self.shape) // block_numbers * block_bytes


class GgufFile:
    """A GGUF file with its header parsed. Tensors are read by `network`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._fields, self._tensors = _read_header(file)
                self._end = file.tell()
        except _DECODE_ERRORS as error:
            raise self._incomplete_error(error) from error
        for name, value in _REQUIRED_FIELDS.items():
            if (actual := self.field(name)) != value:
                raise LoadError(f"{path}: {name} is {actual}, not supported\n  fix: use a file with {name} {value}")

    def _incomplete_error(self, error: Exception) -> LoadError:
        return LoadError(f"{self._path} is not a complete GGUF file: {error}\n  fix: download it again")

    def has_field(self, name: str) -> bool:
        """Whether the header has a metadata field."""
        return name in self._fields

    def field(self, name: str) -> Any:
        """Value of a metadata field. Raises LoadError if it is missing."""
        if name not in self._fields:
            raise LoadError(f"{self._path} has no {name}\n  fix: convert the model again with a current llama.cpp")
        return self._fields[name]

    def _dequantize(self, tensor: _Tensor, file: ndarray[Any, Any]) -> ndarray[Any, Any]:
        """Read a tensor as floats."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        alignment = self._fields.get("general.alignment", _ALIGNMENT_BYTES)
        start = -(-self._end // alignment) * alignment + tensor.offset
        try:
            quantized = file[start : start + tensor.size].reshape(prod(tensor.shape[:-1]), -1)
            return dequantize(quantized, GGMLQuantizationType(tensor.kind)).reshape(tensor.shape)
        except _DECODE_ERRORS as error:
            raise self._incomplete_error(error) from error

    def network(self, dtype: str = "float32", progress: Progress = ignore_progress) -> PreTrainedModel:
        """Load the model, with dequantized weights."""
        import numpy as np
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from mstar.nn.weights.checkpoints import assemble, parse_dtype

        config = LlamaConfig(
            vocab_size=len(self.field("tokenizer.ggml.tokens")),
            hidden_size=self.field("llama.embedding_length"),
            intermediate_size=self.field("llama.feed_forward_length"),
            num_hidden_layers=self.field("llama.block_count"),
            num_attention_heads=self.field("llama.attention.head_count"),
            num_key_value_heads=self.field("llama.attention.head_count_kv"),
            max_position_embeddings=self.field("llama.context_length"),
            rms_norm_eps=self.field("llama.attention.layer_norm_rms_epsilon"),
            rope_parameters={"rope_type": "default", "rope_theta": self.field("llama.rope.freq_base")},
            tie_word_embeddings=not any(tensor.name == "output.weight" for tensor in self._tensors),
        )
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        weights: dict[str, Tensor] = {}
        file = np.memmap(self._path, np.uint8, mode="r")
        done, total = 0, sum(tensor.size for tensor in self._tensors)
        for tensor in self._tensors:
            weight = torch.tensor(self._dequantize(tensor, file), dtype=parse_dtype(dtype))
            part = tensor.name.split(".")[-2]
            weights[_to_transformers_name(tensor.name)] = _unpermute(weight, heads[part]) if part in heads else weight
            done += tensor.size
            progress(done, total)
        return assemble(LlamaForCausalLM, config, weights, dtype)

    def tokenizer(self) -> Tokenizer:
        """Build the tokenizer from the vocabulary and merges in the header."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        tokens: list[str] = self.field("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ")) for merge in self.field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        tokenizer.decoder = decoders.ByteLevel()
        types = self.field("tokenizer.ggml.token_type")
        special = [token for token, type_ in zip(tokens, types, strict=True) if type_ == _CONTROL_TOKEN]
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
        return tokenizer


def _read_header(file: BinaryIO) -> tuple[dict[str, Any], list[_Tensor]]:
    """Parse the metadata fields and the tensor entries. Raises one of _DECODE_ERRORS."""
    magic, version, tensors, count = _unpack(file, "4sIQQ")
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"unsupported magic {magic!r} or version {version}")
    fields = {_read_value(file, _TEXT): _read_value(file, *_unpack(file, "I")) for _ in range(count)}
    return fields, [_read_tensor_entry(file) for _ in range(tensors)]


def _read_tensor_entry(file: BinaryIO) -> _Tensor:
    name = _read_value(file, _TEXT)
    shape = _unpack(file, f"{_unpack(file, 'I')[0]}Q")[::-1]  # the innermost dimension comes first
    return _Tensor(name, shape, *_unpack(file, "IQ"))


def _read_value(file: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return file.read(*_unpack(file, "Q")).decode()
    if kind != _ARRAY:
        return _unpack(file, _STRUCT_FORMATS[kind])[0]
    kind, count = _unpack(file, "IQ")
    if kind in _STRUCT_FORMATS:
        return [*_unpack(file, f"{count}{_STRUCT_FORMATS[kind]}")]
    if kind == _TEXT:  # a vocabulary has 50,000 texts and as many merges
        read, length_of = file.read, struct.Struct("<Q").unpack
        return [read(*length_of(read(8))).decode() for _ in range(count)]
    return [_read_value(file, kind) for _ in range(count)]


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    form = f"<{form}"
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _to_transformers_name(name: str) -> str:
    """Name of a tensor in transformers. An unknown name is unchanged and later reported as unexpected."""
    match name.split("."):
        case ["blk", layer, part, kind] if part in _LAYER:
            return f"model.layers.{layer}.{_LAYER[part]}.{kind}"
        case [part, kind] if part in _TOP_LEVEL:
            return f"{_TOP_LEVEL[part]}.{kind}"
        case _:
            return name


def _unpermute(weight: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's permutation of query and key rows: it interleaves RoPE pairs, transformers splits halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns).contiguous()
