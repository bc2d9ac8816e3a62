"""The bare loop: a Llama written by hand for one batch of equal requests, with nothing around it.

The limit that the engine is measured against: the same kernels and packed matrices, a static cache, no pages, no
requests, no sampling. It can do nothing but this.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mstar.nn import native


def _pack_weight(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, 16)


def _linear(x: Tensor, packed: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


class BareLoop:
    """A transformers Llama's weights, packed, and a static cache for `rows` requests of `longest` positions."""

    def __init__(self, network: Any, rows: int, longest: int) -> None:
        config = network.config
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.size, self.epsilon = config.hidden_size // self.heads, config.rms_norm_eps
        self.longest = longest
        self.embeddings = network.model.embed_tokens.weight
        self.norm, self.head = network.model.norm.weight, _pack_weight(network.lm_head.weight)
        self.layers = []
        for layer in network.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            projections = (attention.q_proj, attention.k_proj, attention.v_proj)
            self.layers.append(
                SimpleNamespace(
                    first=layer.input_layernorm.weight,
                    second=layer.post_attention_layernorm.weight,
                    qkv=_pack_weight(torch.cat([one.weight for one in projections])),
                    out=_pack_weight(attention.o_proj.weight),
                    gate_up=_pack_weight(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])),
                    down=_pack_weight(mlp.down_proj.weight),
                    keys=torch.randn(rows * longest, self.key_heads, self.size, dtype=self.embeddings.dtype),
                    values=torch.randn(rows * longest, self.key_heads, self.size, dtype=self.embeddings.dtype),
                )
            )
        position = torch.arange(longest)
        base = config.rope_parameters["rope_theta"]
        turns = position[:, None] / base ** (torch.arange(0, self.size, 2) / self.size)
        self.cosines = torch.cat([turns, turns], -1).cos().to(self.embeddings.dtype)
        self.sines = torch.cat([turns, turns], -1).sin().to(self.embeddings.dtype)

    @torch.inference_mode()
    def step(self, tokens: Tensor, position: int) -> Tensor:
        """The next token of each row, when all are at the same position: [rows] to [rows, 1]."""
        rows = len(tokens)
        request, seen = torch.arange(rows), torch.full((rows,), position + 1)
        table = request.int()
        places, at = torch.arange(rows) * self.longest + position, torch.full((rows,), position)
        pages = native.Pages(
            table=table.data_ptr(),
            width=1,
            page_size=self.longest,
            request=request.data_ptr(),
            seen=seen.data_ptr(),
            places=places.data_ptr(),
            tokens=rows,
        )
        angles, rule = (self.cosines[at], self.sines[at]), (self.size**-0.5, 0)
        return self._run(
            tokens, lambda layer, qkv: native.attend_joined(qkv, angles, (layer.keys, layer.values), pages, rule)
        )

    @torch.inference_mode()
    def prefill(self, tokens: Tensor) -> Tensor:
        """The token after a prompt that fills the first row of the cache: [tokens] to [1, 1]."""
        count = len(tokens)
        cosines, sines = self.cosines[:count], self.sines[:count]

        def attend(layer: Any, qkv: Tensor) -> Tensor:
            parts = qkv.view(1, count, -1, self.size).transpose(1, 2)
            q, k, v = parts.split([self.heads, self.key_heads, self.key_heads], 1)
            q, k = native.rotate(q, cosines, sines), native.rotate(k, cosines, sines)
            layer.keys[:count], layer.values[:count] = k[0].transpose(0, 1), v[0].transpose(0, 1)
            seen = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return seen.transpose(1, 2).reshape(1, count, -1)

        return self._run(tokens, attend, slice(-1, None))

    def _run(self, tokens: Tensor, attend: Callable[[Any, Tensor], Tensor], last: slice = slice(None)) -> Tensor:
        x = self.embeddings[tokens][None]
        more = torch.zeros_like(x)
        for layer in self.layers:
            x, normed = native.add_norm(x, more, layer.first, self.epsilon)
            attended = _linear(attend(layer, _linear(normed, layer.qkv)), layer.out)
            x, normed = native.add_norm(x, attended, layer.second, self.epsilon)
            more = _linear(native.silu_mul(_linear(normed, layer.gate_up)), layer.down)
        _, normed = native.add_norm(x, more, self.norm, self.epsilon)
        return native.argmax(_linear(normed[:, last], self.head)[0])[0]
