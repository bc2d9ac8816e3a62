"""Recurrent layers of unmodified transformers models (Mamba2, short convolutions, gated delta nets) on ragged batches.

A layer is recurrent if its forward reads a convolution or recurrent state from the cache of transformers. It becomes a
subclass of itself that runs its own forward for the requests of the current batch: those with one new token together,
every other one alone. States come from the slots of the requests and go to new ones (`mstar.nn.kv.recurrent_state`).
Everything around these layers is captured and fused like any other network.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Module
from transformers import Cache, DynamicCache
from transformers.cache_utils import LinearAttentionLayer

from mstar.nn.kv.paged_attention import DIRECT_CALLS, current_batch

_STATE_METHODS = {"get_conv_state", "get_recurrent_state"}
"""Methods of the cache of transformers that recurrent layers call."""
_CACHE_NAMES = ("cache_params", "past_key_values")
"""Names of the cache in the forward of a layer."""


def batch_recurrent_layers(network: Any) -> dict[int, Module]:
    """Let the recurrent layers of a network run on ragged batches; return them by their number."""
    layers = {module.layer_idx: module for module in network.modules() if _is_recurrent(module)}
    caches = DynamicCache(config=network.config).layers if layers else []
    for number, layer in layers.items():
        if not hasattr(layer, "run_requests"):  # else another decoder has the same network
            layer.state_count = getattr(caches[number], "number_of_states", 1)
            layer.__class__ = _batched(type(layer))
    return layers


def has_recurrent_layers(network: Any) -> bool:
    """Whether a network has recurrent layers."""
    return any(map(_is_recurrent, network.modules()))


def _is_recurrent(module: Module) -> bool:
    if hasattr(module, "run_requests"):
        return True
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return hasattr(module, "layer_idx") and code is not None and bool(_STATE_METHODS & {*code.co_names})


@functools.cache
def _batched(kind: type[Module]) -> type[Module]:
    """Subclass of a recurrent layer that runs on the current batch. Equal layers have the same class."""
    cache_name = next(name for name in _CACHE_NAMES if name in inspect.signature(kind.forward).parameters)

    def forward(self: Any, hidden_states: Tensor, **_: Any) -> Tensor:
        run = torch.ops.mstar.run_recurrent if torch.compiler.is_exporting() else run_recurrent
        return run(hidden_states, self.layer_idx)

    def run_requests(self: Any, hidden_states: Tensor, cache: Cache) -> Tensor:
        return kind.forward(self, hidden_states, **{cache_name: cache})

    return type(kind.__name__, (kind,), {"forward": forward, "run_requests": run_requests})


def run_recurrent(hidden: Tensor, layer: int) -> Tensor:
    """Run a recurrent layer for the tokens of the current batch, [1, tokens, size]."""
    batch = current_batch()
    states, out = batch.store.states, torch.empty_like(hidden[0])
    assert states is not None
    module = states.layers[layer]
    for group in batch.recurrent_groups:
        tokens, before, after = group.arrays
        memory = _layer_memory(module.state_count, states.read(layer, before) if group.has_states else {})
        cache = Cache(layers=[memory])
        cache.layers = cast("Any", {layer: memory})  # the layer looks its states up by its number
        out[tokens] = module.run_requests(hidden[0][tokens], cache)
        states.write(layer, after, _states_of(memory))
    return out[None]


def _layer_memory(count: int, states: dict[tuple[str, int], Tensor]) -> LinearAttentionLayer:
    """Cache of one layer in transformers, empty or with the states of a group of requests."""
    memory = LinearAttentionLayer(number_of_states=count)
    for (kind, number), state in states.items():
        if kind == "conv":
            memory.conv_states[number], memory.is_conv_states_initialized[number] = state, True
            memory.conv_kernel_size[number] = state.shape[-1]
        else:
            memory.recurrent_states[number], memory.is_recurrent_states_initialized[number] = state, True
        memory.has_previous_state[number] = True
    return memory


def _states_of(memory: LinearAttentionLayer) -> dict[tuple[str, int], Tensor]:
    kinds = (("conv", memory.conv_states), ("recurrent", memory.recurrent_states))
    return {(kind, number): state for kind, states in kinds for number, state in states.items() if state is not None}


_run_op = torch.library.custom_op("mstar::run_recurrent", run_recurrent, mutates_args=())


@_run_op.register_fake
def _(hidden: Tensor, layer: int) -> Tensor:  # noqa: ARG001
    return torch.empty_like(hidden)


DIRECT_CALLS[torch.ops.mstar.run_recurrent.default] = run_recurrent
