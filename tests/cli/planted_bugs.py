"""Numeric bugs of decoders, as they happen in ports and kernels, in a network or in the runtime."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mstar.nn.lm import decoder as decoder_module

SIZE = 8
"""Size of a head of the tiny networks."""


@dataclass(frozen=True)
class Bug:
    """A bug, and where it must be found."""

    name: str
    call: int
    """Number of the call of the op: 0 is the prefill, 1 the first decode step."""
    change: Any = None
    """Changes the network before it is loaded."""
    patch: Any = nullcontext
    """Changes the runtime while the request runs."""
    family: str = "llama"
    op: str = "lm.next_token_scored"


# ---------------------------------------------------------------- in the network
def wrong_scale(network):
    network.model.layers[1].self_attn.scaling *= 1.01


def swapped_heads(network):
    weight = network.model.layers[0].self_attn.q_proj.weight.data
    weight[: 2 * SIZE] = torch.cat([weight[SIZE : 2 * SIZE], weight[:SIZE]])


def wrong_rope_base(network):
    rotary = network.model.rotary_emb
    base = 20_000.0
    rotary.inv_freq = 1 / base ** (torch.arange(0, SIZE, 2).float() / SIZE)


def wrong_bias(network):
    network.model.layers[1].self_attn.q_proj.bias.data += 0.1  # it is zero in a new network


def transposed_weights(network):
    layer = network.model.layers[0].self_attn.o_proj
    layer.weight.data = layer.weight.data.T.contiguous()


def wrong_norm_eps(network):
    for layer in network.model.layers:
        layer.input_layernorm.variance_epsilon = 1e-4


class WithoutResidual(nn.Module):
    """A norm before the MLP whose residual misses the attention: the layer adds it to what it read."""

    def __init__(self, mlp):
        super().__init__()
        self.mlp = mlp

    def forward(self, hidden):
        return self.mlp(hidden) - hidden


def dropped_residual(network):
    network.model.layers[0].mlp = WithoutResidual(network.model.layers[0].mlp)


def missing_final_norm_weight(network):
    network.model.norm.weight.data *= 1.001


def shifted_vocabulary(network):
    network.lm_head.weight.data = network.lm_head.weight.data.roll(1, 0)


def swapped_gate_and_up(network):
    mlp = network.model.layers[1].mlp
    mlp.gate_proj.weight.data, mlp.up_proj.weight.data = mlp.up_proj.weight.data, mlp.gate_proj.weight.data.clone()


def swapped_keys_and_values(network):
    attention = network.model.layers[0].self_attn
    keys = attention.k_proj.weight.data.clone()
    attention.k_proj.weight.data, attention.v_proj.weight.data = attention.v_proj.weight.data, keys


def wrong_activation(network):
    network.model.layers[1].mlp.act_fn = nn.GELU()


def rounded_weights(network):
    weight = network.model.layers[1].mlp.down_proj.weight
    weight.data = weight.data.bfloat16().float()


def layers_in_another_order(network):
    network.model.layers[0].mlp, network.model.layers[1].mlp = network.model.layers[1].mlp, network.model.layers[0].mlp


def missing_norm_of_queries(network):
    network.model.layers[0].self_attn.q_norm.weight.data.mul_(1.05)


# ---------------------------------------------------------------- in the runtime
@contextmanager
def patched(owner, name, make):
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def off_by_one_position():
    """Positions of decode steps, not of the prompt."""

    def make(describe):
        def describe_shifted(store, caches, counts, *more, **options):
            batch = describe(store, caches, counts, *more, **options)
            if max(counts) == 1:
                batch.positions = batch.positions + 1
            return batch

        return describe_shifted

    return patched(decoder_module, "describe_batch", make)


def wrong_mask():
    """Tokens of a prompt see those after them."""

    def make(describe):
        def describe_open(store, caches, counts, *more, **options):
            return describe(store, caches, counts, *more, **options, is_causal=max(counts) == 1)

        return describe_open

    return patched(decoder_module, "describe_batch", make)


def spoiled_step(number, factor):
    """After a decode step, the values that it has written to the KV cache are multiplied."""

    def make(run):
        def run_and_spoil(self, embeddings, batch, last):
            result = run(self, embeddings, batch, last)
            if batch.caches[0].sampler.generated_count == number:
                for memory in self.store.values:
                    memory[batch.places] *= factor
            return result

        return run_and_spoil

    return patched(decoder_module.Decoder, "_run", make)


def stale_cache():
    """The third decode step writes no values: the memory has what was there before."""
    return spoiled_step(3, 0)


def overwritten_cache():
    """The values of the second decode step are twice as large."""
    return spoiled_step(2, 2)


BUGS = [
    Bug("wrong scale", 0, wrong_scale),
    Bug("swapped heads", 0, swapped_heads),
    Bug("wrong rope base", 0, wrong_rope_base),
    Bug("wrong bias", 0, wrong_bias, family="qwen2"),
    Bug("transposed weights", 0, transposed_weights),
    Bug("wrong norm eps", 0, wrong_norm_eps),
    Bug("dropped residual", 0, dropped_residual),
    Bug("wrong weight of the final norm", 0, missing_final_norm_weight),
    Bug("shifted vocabulary", 0, shifted_vocabulary),
    Bug("swapped gate and up", 0, swapped_gate_and_up),
    Bug("swapped keys and values", 0, swapped_keys_and_values),
    Bug("wrong activation", 0, wrong_activation),
    Bug("rounded weights", 0, rounded_weights),
    Bug("MLPs of two layers swapped", 0, layers_in_another_order),
    Bug("wrong norm of queries", 0, missing_norm_of_queries, family="qwen3"),
    Bug("off-by-one position", 1, patch=off_by_one_position),
    Bug("wrong mask", 0, patch=wrong_mask),
    Bug("stale cache", 3, patch=stale_cache),
    Bug("overwritten cache", 2, patch=overwritten_cache),
]
