"""The code predictor of Qwen3-TTS and Qwen3-Omni, for a batch of frames: layers of a Qwen3 with a cache of one frame.

transformers has such layers, and spends most of its time around them: a frame is fifteen steps of a small network. Here
matrices that read the same input are one, and the cache has a fixed size. How codes are chosen is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu


class ResidualCodes:
    """Tensors by the names they have in the file, and the shape that config.json says."""

    def __init__(self, shape: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        prefix = "code_predictor."
        own = {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}
        self.groups: int = shape["num_code_groups"]
        self._heads: int = shape["num_attention_heads"]
        self._kv_heads: int = shape["num_key_value_heads"]
        self._size: int = shape["head_dim"]
        self._eps: float = shape["rms_norm_eps"]
        self._first = tensors["model.codec_embedding.weight"]
        rest = range(self.groups - 1)
        self._embeddings = [own[f"model.codec_embedding.{number}.weight"] for number in rest]
        self._outputs = [own[f"lm_head.{number}.weight"] for number in rest]
        narrow = [one for name, one in sorted(own.items(), reverse=True) if name.startswith("small_to_mtp_projection.")]
        self._narrow = narrow or None  # it has none where both sizes are equal
        self._norm = own["model.norm.weight"]
        numbers = range(shape["num_hidden_layers"])
        self._layers = [_Layer(own, f"model.layers.{number}.", self._heads, self._kv_heads) for number in numbers]
        angles = torch.outer(
            torch.arange(self.groups + 1.0),
            shape.get("rope_theta", 10_000.0) ** -(torch.arange(0, self._size, 2) / self._size),
        ).repeat(1, 2)
        self._cos, self._sin = angles.cos().to(self._norm), angles.sin().to(self._norm)
        self._sin[:, : self._size // 2] *= -1  # what is turned has its halves swapped, and the first negated

    @torch.inference_mode()
    def frames(self, first: Tensor, thought: Tensor, choose: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """All codes of frames with these first codes, [rows, 1], and the sum of their embeddings.

        `choose` gives a code, [rows, 1], for each row of logits.
        """
        heard = self._first[first[:, 0]]
        given = torch.stack([thought, heard], 1)
        shape = (len(self._layers), 2, len(first), self._kv_heads, self.groups, self._size)
        cache, end, codes = given.new_empty(shape), 0, [first]
        for embedding, output in zip(self._embeddings, self._outputs, strict=True):
            start, end = end, end + given.shape[1]
            hidden = given if self._narrow is None else linear(given, *self._narrow)
            for layer, kept in zip(self._layers, cache, strict=True):
                hidden = self._run(layer, hidden, kept, start)
            last = rms_norm(hidden[:, -1], self._norm.shape, self._norm, self._eps)
            codes.append(choose(linear(last, output)))
            given = embedding[codes[-1]]
            heard = heard + given[:, 0]
        return torch.cat(codes, 1), heard

    def _run(self, layer: _Layer, hidden: Tensor, kept: Tensor, start: int) -> Tensor:
        """One layer, for positions from `start` on; what it keeps of those before is in `kept`."""
        end = start + hidden.shape[1]
        joined = linear(rms_norm(hidden, layer.before.shape, layer.before, self._eps), layer.attend)
        heads = joined.unflatten(-1, (-1, self._size)).transpose(1, 2)
        heads, value = heads.split([self._heads + self._kv_heads, self._kv_heads], 1)
        heads = rms_norm(heads, heads.shape[-1:], None, self._eps) * layer.even
        heads = heads * self._cos[start:end] + heads.roll(self._size // 2, -1) * self._sin[start:end]
        query, key = heads.split([self._heads, self._kv_heads], 1)
        kept[0, :, :, start:end], kept[1, :, :, start:end] = key, value
        keys, values = kept[:, :, :, :end]
        seen = scaled_dot_product_attention(query, keys, values, is_causal=start == 0, enable_gqa=True)
        hidden = hidden + linear(seen.transpose(1, 2).flatten(2), layer.output)
        gate, up = linear(rms_norm(hidden, layer.between.shape, layer.between, self._eps), layer.widen).chunk(2, -1)
        return hidden + linear(silu(gate) * up, layer.narrow)


class _Layer:
    """The matrices of one layer, those of one input joined."""

    def __init__(self, tensors: Mapping[str, Tensor], name: str, heads: int, kv_heads: int) -> None:
        def of(*parts: str) -> Tensor:
            return torch.cat([tensors[f"{name}{part}.weight"] for part in parts])

        self.before, self.between = of("input_layernorm"), of("post_attention_layernorm")
        query, key = of("self_attn.q_norm"), of("self_attn.k_norm")
        self.even = torch.stack([query] * heads + [key] * kv_heads)[:, None]
        self.attend = of("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.output = of("self_attn.o_proj")
        self.widen, self.narrow = of("mlp.gate_proj", "mlp.up_proj"), of("mlp.down_proj")
