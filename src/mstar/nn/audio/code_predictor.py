"""RVQ code predictor of Qwen3-TTS, Qwen3-Omni and CSM: predicts the residual codes of a batch of audio frames.

A frame is fifteen autoregressive steps of a small Qwen3, or 31 of a Llama, with a KV cache of one frame. The layers of
transformers spend most of that time on overhead. Here matrices with the same input are merged, the cache has a fixed
size, and with native kernels a step is one call. Codes are sampled by the caller, or by `mstar.nn.audio.code_sampling`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from mstar.nn import native
from mstar.nn.device_graphs import DeviceGraphs
from mstar.nn.devices import can_capture
from mstar.nn.native import networks
from mstar.nn.native.row_linear import RowLinear


class CodePredictor:
    """Code predictor built from checkpoint tensors by name; `shape` is its section of config.json.

    `frequencies` are those of the rotary embedding, [head_dim / 2], by default from the `rope_theta` of `shape`.
    Without `has_head_norms` there are no norms of queries and keys.
    """

    def __init__(
        self,
        shape: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        frequencies: Tensor | None = None,
        *,
        has_head_norms: bool = True,
    ) -> None:
        prefix = "code_predictor."
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        self.groups: int = shape["num_code_groups"]
        self._heads: int = shape["num_attention_heads"]
        self._kv_heads: int = shape["num_key_value_heads"]
        self._size: int = shape["head_dim"]
        self._eps: float = shape["rms_norm_eps"]
        self._first = tensors["model.codec_embedding.weight"]
        residual_codes = range(self.groups - 1)
        self._embeddings = [own[f"model.codec_embedding.{number}.weight"] for number in residual_codes]
        self._outputs = [own[f"lm_head.{number}.weight"] for number in residual_codes]
        projection = "small_to_mtp_projection."
        narrow = [tensor for name, tensor in sorted(own.items(), reverse=True) if name.startswith(projection)]
        self._narrow = RowLinear(*narrow) if narrow else None  # absent if both sizes are equal
        self._norm = own["model.norm.weight"]
        self.device = self._norm.device
        self.codebook_size = len(self._embeddings[0])
        numbers = range(shape["num_hidden_layers"])
        self._layers = [_Layer(own, f"model.layers.{number}.", has_head_norms=has_head_norms) for number in numbers]
        default = shape.get("rope_theta", 10_000.0) ** -(torch.arange(0, self._size, 2) / self._size)
        rates = default if frequencies is None else frequencies
        angles = torch.outer(torch.arange(self.groups + 1.0), rates).repeat(1, 2)
        self._cos, self._sin = angles.cos().to(self._norm), angles.sin().to(self._norm)
        self.graphs: DeviceGraphs[tuple[int, int]] | None = None
        """Graphs of a batch of frames, by number of rows and `CapturedSampling.entries`, if the device has graphs."""
        if can_capture(self.device):
            self.graphs = DeviceGraphs(self.device, "audio frames")
        self._native = None
        if native.is_native(self._norm.dtype, self._norm.device):
            self._native = (networks.Layer * len(self._layers))(*(layer.packed() for layer in self._layers))
            self._outputs = [native.to_tiles(output) for output in self._outputs]

    def new_hidden_states(self, rows: int) -> Tensor:
        """Zeros like the hidden states of this number of frames."""
        return self._first.new_zeros((rows, self._first.shape[1]))

    @torch.inference_mode()
    def predict_frames(
        self, first: Tensor, hidden_state: Tensor, sample: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """All codes of the frames with these first codes, [rows, 1] on its device, and the sum of their embeddings.

        `sample` returns a code, [rows, 1], for each row of logits.
        """
        frame_embedding = self._first[first[:, 0]]
        inputs = torch.stack([hidden_state, frame_embedding], 1)
        shape = (len(self._layers), 2, len(first), self.groups, self._kv_heads, self._size)
        cache, end, codes = inputs.new_empty(shape), 0, [first]
        for embedding, output in zip(self._embeddings, self._outputs, strict=True):
            start, end = end, end + inputs.shape[1]
            hidden = inputs if self._narrow is None else self._narrow(inputs)
            hidden = self._run(hidden, cache, start)
            codes.append(sample(self._scores(hidden[:, -1], output, len(embedding))))
            inputs = embedding[codes[-1]]
            frame_embedding = frame_embedding + inputs[:, 0]
        return torch.cat(codes, 1), frame_embedding

    def _run(self, hidden: Tensor, cache: Tensor, start: int) -> Tensor:
        """Run all layers, for positions from `start` on. `hidden` can be overwritten."""
        if self._native is None:
            for layer, layer_cache in zip(self._layers, cache, strict=True):
                hidden = self._run_layer(layer, hidden, layer_cache, start)
            return hidden
        widths = (hidden.shape[2], self._layers[0].hidden, self._heads, self._kv_heads, self._size, self.groups)
        sizes = networks.DecoderSizes(*hidden.shape[:2], *widths, self._eps)
        networks.run_layers(hidden, self._native, cache, (self._cos, self._sin), sizes, start)
        return hidden

    def _scores(self, last: Tensor, output: Tensor, count: int) -> Tensor:
        """Logits of `count` codes."""
        if self._native is None:
            return linear(rms_norm(last, self._norm.shape, self._norm, self._eps), output)
        return native.linear(native.rms_norm(last, self._norm, self._eps), output, count, None)

    def _run_layer(self, layer: _Layer, hidden: Tensor, cache: Tensor, start: int) -> Tensor:
        """Run one layer with its KV cache, [2, rows, positions, heads, size]."""
        end, heads = start + hidden.shape[1], [self._heads, self._kv_heads, self._kv_heads]
        joined = linear(rms_norm(hidden, layer.before.shape, layer.before, self._eps), layer.joined)
        query, key, cache[1, :, start:end] = joined.unflatten(-1, (-1, self._size)).split(heads, 2)
        query, cache[0, :, start:end] = (
            self._norm_and_rotate(query, layer.query, start),
            self._norm_and_rotate(key, layer.key, start),
        )
        keys, values = cache[:, :, :end].transpose(2, 3)
        query = query.transpose(1, 2)
        attended = scaled_dot_product_attention(query, keys, values, is_causal=start == 0, enable_gqa=True)
        hidden = hidden + linear(attended.transpose(1, 2).flatten(2), layer.output)
        gate, up = linear(rms_norm(hidden, layer.between.shape, layer.between, self._eps), layer.widen).chunk(2, -1)
        return hidden + linear(silu(gate) * up, layer.narrow)

    def _norm_and_rotate(self, heads: Tensor, weight: Tensor | None, start: int) -> Tensor:
        """RMS norm, if the layer has one, and rotary embedding of [rows, tokens, heads, size]."""
        if weight is not None:
            heads = rms_norm(heads, weight.shape, weight, self._eps)
        cos, sin = (table[start : start + heads.shape[1], None] for table in (self._cos, self._sin))
        low, high = heads.chunk(2, -1)
        return heads * cos + torch.cat([-high, low], -1) * sin


class _Layer:
    """Weights of one layer; matrices with the same input are merged."""

    def __init__(self, tensors: Mapping[str, Tensor], name: str, *, has_head_norms: bool) -> None:
        def of(*parts: str) -> Tensor:
            return torch.cat([tensors[f"{name}{part}.weight"] for part in parts])

        self.before, self.between = of("input_layernorm"), of("post_attention_layernorm")
        self.query = of("self_attn.q_norm") if has_head_norms else None
        self.key = of("self_attn.k_norm") if has_head_norms else None
        self.joined = of("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.output = of("self_attn.o_proj")
        self.widen, self.narrow = of("mlp.gate_proj", "mlp.up_proj"), of("mlp.down_proj")
        self.hidden = self.narrow.shape[1]

    def packed(self) -> networks.Layer:
        """Convert the matrices to tiles in place, and return the layer for the native kernels."""
        self.joined, self.output, self.widen, self.narrow = map(
            native.to_tiles, (self.joined, self.output, self.widen, self.narrow)
        )
        weights = {name: getattr(self, name) for name in networks.LAYER}
        return networks.Layer(**{name: weight.data_ptr() for name, weight in weights.items() if weight is not None})
