"""The code predictor of Qwen3-TTS and Qwen3-Omni, for a batch of frames: layers of a Qwen3 with a cache of one frame.

transformers has such layers, and spends most of its time around them: a frame is fifteen steps of a small network. Here
matrices that read the same input are one, the cache has a fixed size, and where there are kernels for it a step is one
call. How codes are chosen is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from mstar.nn import native
from mstar.nn.native import networks


class CodePredictor:
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
        self._layers = [_Layer(own, f"model.layers.{number}.") for number in numbers]
        angles = torch.outer(
            torch.arange(self.groups + 1.0),
            shape.get("rope_theta", 10_000.0) ** -(torch.arange(0, self._size, 2) / self._size),
        ).repeat(1, 2)
        self._cos, self._sin = angles.cos().to(self._norm), angles.sin().to(self._norm)
        self._native = None
        if native.is_native(self._norm.dtype, self._norm.device):
            self._native = (networks.Layer * len(self._layers))(*(layer.packed() for layer in self._layers))
            self._outputs = [native.to_tiles(output) for output in self._outputs]

    @torch.inference_mode()
    def predict_frames(
        self, first: Tensor, hidden_state: Tensor, sample: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """All codes of frames with these first codes, [rows, 1], and the sum of their embeddings.

        `choose` gives a code, [rows, 1], for each row of logits.
        """
        heard = self._first[first[:, 0]]
        given = torch.stack([hidden_state, heard], 1)
        shape = (len(self._layers), 2, len(first), self.groups, self._kv_heads, self._size)
        cache, end, codes = given.new_empty(shape), 0, [first]
        for embedding, output in zip(self._embeddings, self._outputs, strict=True):
            start, end = end, end + given.shape[1]
            hidden = given if self._narrow is None else linear(given, *self._narrow)
            hidden = self._run(hidden, cache, start)
            codes.append(sample(self._scores(hidden[:, -1], output, len(embedding))))
            given = embedding[codes[-1]]
            heard = heard + given[:, 0]
        return torch.cat(codes, 1), heard

    def _run(self, hidden: Tensor, cache: Tensor, start: int) -> Tensor:
        """All layers, for positions from `start` on. What is given may be overwritten."""
        if self._native is None:
            for layer, kept in zip(self._layers, cache, strict=True):
                hidden = self._run_layer(layer, hidden, kept, start)
            return hidden
        widths = (hidden.shape[2], self._layers[0].hidden, self._heads, self._kv_heads, self._size, self.groups)
        sizes = networks.DecoderSizes(*hidden.shape[:2], *widths, self._eps)
        networks.run_layers(hidden, self._native, cache, (self._cos, self._sin), sizes, start)
        return hidden

    def _scores(self, last: Tensor, output: Tensor, count: int) -> Tensor:
        """Logits of so many codes."""
        if self._native is None:
            return linear(rms_norm(last, self._norm.shape, self._norm, self._eps), output)
        return native.linear(native.rms_norm(last, self._norm, self._eps), output, count, None)

    def _run_layer(self, layer: _Layer, hidden: Tensor, kept: Tensor, start: int) -> Tensor:
        """One layer; what it keeps of the positions before is in `kept`."""
        end, heads = start + hidden.shape[1], [self._heads, self._kv_heads, self._kv_heads]
        joined = linear(rms_norm(hidden, layer.before.shape, layer.before, self._eps), layer.joined)
        query, key, kept[1, :, start:end] = joined.unflatten(-1, (-1, self._size)).split(heads, 2)
        query, kept[0, :, start:end] = (
            self._norm_and_rotate(query, layer.query, start),
            self._norm_and_rotate(key, layer.key, start),
        )
        keys, values = kept[:, :, :end].transpose(2, 3)
        seen = scaled_dot_product_attention(query.transpose(1, 2), keys, values, is_causal=start == 0, enable_gqa=True)
        hidden = hidden + linear(seen.transpose(1, 2).flatten(2), layer.output)
        gate, up = linear(rms_norm(hidden, layer.between.shape, layer.between, self._eps), layer.widen).chunk(2, -1)
        return hidden + linear(silu(gate) * up, layer.narrow)

    def _norm_and_rotate(self, heads: Tensor, weight: Tensor, start: int) -> Tensor:
        """[rows, tokens, heads, size], normed and turned."""
        heads = rms_norm(heads, weight.shape, weight, self._eps)
        cos, sin = (one[start : start + heads.shape[1], None] for one in (self._cos, self._sin))
        low, high = heads.chunk(2, -1)
        return heads * cos + torch.cat([-high, low], -1) * sin


class _Layer:
    """The matrices of one layer, those of one input joined."""

    def __init__(self, tensors: Mapping[str, Tensor], name: str) -> None:
        def of(*parts: str) -> Tensor:
            return torch.cat([tensors[f"{name}{part}.weight"] for part in parts])

        self.before, self.between = of("input_layernorm"), of("post_attention_layernorm")
        self.query, self.key = of("self_attn.q_norm"), of("self_attn.k_norm")
        self.joined = of("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.output = of("self_attn.o_proj")
        self.widen, self.narrow = of("mlp.gate_proj", "mlp.up_proj"), of("mlp.down_proj")
        self.hidden = self.narrow.shape[1]

    def packed(self) -> networks.Layer:
        """The same for the kernels. From now on its matrices are tiles."""
        self.joined, self.output, self.widen, self.narrow = map(
            native.to_tiles, (self.joined, self.output, self.widen, self.narrow)
        )
        return networks.Layer(**{name: getattr(self, name).data_ptr() for name in networks.LAYER})
