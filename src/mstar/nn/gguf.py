"""Reading GGUF files: a Llama as a transformers model, and its tokenizer.

Quantised weights become floats. Only the architecture `llama` with the vocabulary of a SmolLM (byte-level BPE, each
digit by itself) is read; anything else is refused, because a wrong guess gives fluent nonsense.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from mstar.errors import LoadError
from mstar.nn.checkpoints import assemble, dtype_named
from mstar.nn.weights import Progress, untold

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
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_KIND = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
"""The one kind of file that is read, by the fields that say so."""
_CONTROL = 3
"""The type of a token that is no text, such as the end of a turn."""


class GgufFile:
    """One file, opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except ValueError as error:
            raise LoadError(f"{path} is no complete GGUF file: {error}\n  fix: fetch it again") from error
        for name, value in _KIND.items():
            if (found := self._field(name)) != value:
                raise LoadError(f"{path} has {name} {found}\n  fix: use a file that has {name} {value}")

    def _field(self, name: str) -> Any:
        if name not in self._reader.fields:
            raise LoadError(f"{self._path} has no {name}\n  fix: convert the model again with today's llama.cpp")
        return self._reader.fields[name].contents()

    def network(self, dtype: str = "float32", progress: Progress = untold) -> PreTrainedModel:
        """The model, with its weights as floats."""
        config = LlamaConfig(
            vocab_size=len(self._field("tokenizer.ggml.tokens")),
            hidden_size=self._field("llama.embedding_length"),
            intermediate_size=self._field("llama.feed_forward_length"),
            num_hidden_layers=self._field("llama.block_count"),
            num_attention_heads=self._field("llama.attention.head_count"),
            num_key_value_heads=self._field("llama.attention.head_count_kv"),
            max_position_embeddings=self._field("llama.context_length"),
            rms_norm_eps=self._field("llama.attention.layer_norm_rms_epsilon"),
            rope_parameters={"rope_type": "default", "rope_theta": self._field("llama.rope.freq_base")},
            tie_word_embeddings=not any(tensor.name == "output.weight" for tensor in self._reader.tensors),
        )
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        weights: dict[str, Tensor] = {}
        done, total = 0, sum(tensor.n_bytes for tensor in self._reader.tensors)
        for tensor in self._reader.tensors:
            weight = torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=dtype_named(dtype))
            part = tensor.name.split(".")[-2]
            weights[_name(tensor.name)] = _unpermuted(weight, heads[part]) if part in heads else weight
            done += int(tensor.n_bytes)
            progress(done, total)
        return assemble(LlamaForCausalLM, config, weights, dtype)

    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back, as the model was trained with it."""
        tokens: list[str] = self._field("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ")) for merge in self._field("tokenizer.ggml.merges")]
        made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
        digits = pre_tokenizers.Digits(individual_digits=True)
        made.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        made.decoder = decoders.ByteLevel()
        types = self._field("tokenizer.ggml.token_type")
        special = [token for token, type_ in zip(tokens, types, strict=True) if type_ == _CONTROL]
        made.add_special_tokens([AddedToken(token, special=True) for token in special])
        return made


def _name(name: str) -> str:
    """transformers' name of a tensor; one that has none keeps its own, and is refused by it."""
    match name.split("."):
        case ["blk", layer, part, kind] if part in _LAYER:
            return f"model.layers.{layer}.{_LAYER[part]}.{kind}"
        case [part, kind] if part in _WHOLE:
            return f"{_WHOLE[part]}.{kind}"
        case _:
            return name


def _unpermuted(weight: Tensor, heads: int) -> Tensor:
    """GGUF keeps rows of queries and keys that are rotated together side by side; transformers keeps halves apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns).contiguous()
