"""Compress the encoder of a transformers network in place: smaller heads, then linear layers of low rank.

Layer by layer, each calibrated with what the compressed layers before it compute. It knows the layers of Whisper and
its relatives: pre-normalized self-attention without a mask, then a feed-forward part. Convolutions, embeddings and the
decoder stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module

from mstar.nn.low_rank.factors import Affine, Factors, Moments, factor_heads, factor_linear, reduce_heads
from mstar.nn.low_rank.layers import Ranks, ReducedAttention, factored_linear
from mstar.nn.weights.progress import Progress, ignore_progress

HEAD_SIZE_STEP = 16
"""Sizes of reduced heads are multiples of this: a vector register of 512 bits has 16 floats."""


@torch.inference_mode()
def compress_encoder(
    network: Any, inputs: Sequence[Tensor], energy: float, progress: Progress = ignore_progress
) -> Ranks:
    """Compress the encoder of a network in place, calibrated with these inputs of it, each a batch of one.

    The ranks are also the `low_rank` of the network's configuration, so `save_pretrained` writes a checkpoint that
    `mstar.nn.weights.checkpoints` reads. `progress` is called with the number of layers that are done, and of all.
    """
    encoder = network.get_encoder()
    (prefix,) = (name for name, module in network.named_modules() if module is encoder)
    hidden, ranks = [_layer_inputs(encoder, batch) for batch in inputs], Ranks()
    for number, layer in enumerate(encoder.layers):
        hidden = _LayerCompression(layer, f"{prefix}.layers.{number}", energy, ranks).run(hidden)
        progress(number + 1, len(encoder.layers))
    network.config.low_rank = ranks.to_config()
    return ranks


def count_parameters(module: Module) -> int:
    """Number of weights of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


class _FirstLayerReached(Exception):
    """Ends a run of the encoder before its first layer."""


def _layer_inputs(encoder: Any, batch: Tensor) -> Tensor:
    """[positions, width]: what the first layer gets for an input of the encoder."""
    hidden: list[Tensor] = []

    def stop(_module: Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        hidden.append(args[0] if args else kwargs["hidden_states"])
        raise _FirstLayerReached

    handle = encoder.layers[0].register_forward_pre_hook(stop, with_kwargs=True)
    try:
        encoder(batch)
    except _FirstLayerReached:
        pass
    finally:
        handle.remove()
    return hidden[0][0]


class _LayerCompression:
    """Compresses one layer."""

    def __init__(self, layer: Any, name: str, energy: float, ranks: Ranks) -> None:
        self._layer = layer
        self._name = name
        self._energy = energy
        self._ranks = ranks

    def run(self, hidden: list[Tensor]) -> list[Tensor]:
        """Compress the layer for these inputs, [positions, width] each, and return its outputs as it has become."""
        layer = self._layer
        inputs = [layer.self_attn_layer_norm(part) for part in hidden]
        attended = self._attended(inputs)
        if not self._reduce_heads(torch.cat(inputs), torch.cat(attended)):
            self._factor("self_attn.out_proj", attended)
            for projection in ("q_proj", "k_proj", "v_proj"):
                self._factor(f"self_attn.{projection}", inputs)
        hidden = [before + self._attend(part) for before, part in zip(hidden, inputs, strict=True)]
        inputs = [layer.final_layer_norm(part) for part in hidden]
        self._factor("fc1", inputs)
        inputs = [layer.activation_fn(layer.fc1(part)) for part in inputs]
        self._factor("fc2", inputs)
        return [before + layer.fc2(part) for before, part in zip(hidden, inputs, strict=True)]

    def _attend(self, inputs: Tensor) -> Tensor:
        return self._layer.self_attn(hidden_states=inputs[None], attention_mask=None)[0][0]

    def _attended(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Inputs of the output projection."""
        attended: list[Tensor] = []
        handle = self._layer.self_attn.out_proj.register_forward_pre_hook(lambda _, args: attended.append(args[0][0]))
        for part in inputs:
            self._attend(part)
        handle.remove()
        return attended

    def _reduce_heads(self, inputs: Tensor, attended: Tensor) -> bool:
        """Replace the attention if its heads can be smaller. Returns whether they can."""
        attention: Any = self._layer.self_attn
        queries = attention.q_proj(inputs) * attention.scaling
        heads = [part.unflatten(1, (attention.num_heads, -1)) for part in (queries, attention.k_proj(inputs), attended)]
        factors = factor_heads((heads[0], heads[1], heads[2]), attention.out_proj.weight.double(), self._energy)
        size = -(-factors.size // HEAD_SIZE_STEP) * HEAD_SIZE_STEP
        if size >= attention.head_dim:
            return False
        reduced = ReducedAttention(attention.embed_dim, attention.num_heads, size)
        reduced.load_state_dict(reduce_heads(attention, factors, size, attended.double().mean(0)))
        self._layer.self_attn = reduced.to(inputs.dtype).eval()
        self._ranks.heads[f"{self._name}.self_attn"] = size
        return True

    def _factor(self, path: str, inputs: Sequence[Tensor]) -> None:
        """Replace a linear layer by two factors if they need less work."""
        linear: Any = self._layer.get_submodule(path)
        factors = factor_linear(Affine.of(linear), Moments.of(torch.cat(list(inputs))), self._energy)
        if factors is None:
            return
        self._layer.set_submodule(path, _to_module(linear, factors))
        self._ranks.linears[f"{self._name}.{path}"] = len(factors.first)


def _to_module(linear: Linear, factors: Factors) -> Module:
    pair = factored_linear(linear.in_features, linear.out_features, len(factors.first))
    pair.load_state_dict({"0.weight": factors.first, "1.weight": factors.second, "1.bias": factors.bias})
    return pair.to(linear.weight.dtype).eval()
