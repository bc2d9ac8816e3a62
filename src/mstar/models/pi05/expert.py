"""Action expert of pi0.5: a Gemma with adaptive RMS norms (adaRMS) that denoises a batch of action chunks.

transformers has no such norms, and its overhead dominates these small layers, which run ten times per chunk. Here
matrices with the same input are fused, and the modulation of the norms is computed once per number of steps. The expert
attends to the KV of a prefix and writes none. Robots and images are unknown to it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import pi

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, rms_norm, scaled_dot_product_attention, silu

from mstar.models.pi05.checkpoint import NamedTensors

_EPS = 1e-6
_ROPE_BASE = 10_000.0
_MAX_GUIDANCE_WEIGHT = 10.0
"""Maximum weight of the guidance towards the previous chunk."""


class ActionExpert:
    """Tensors by their published names. `periods` are the minimum and maximum period of the time embedding."""

    def __init__(self, tensors: NamedTensors, periods: tuple[float, float]) -> None:
        def pair(name: str) -> tuple[Tensor, Tensor]:
            return tensors[f"{name}.weight"].float(), tensors[f"{name}.bias"].float()

        self._action_in, self._action_out = pair("action_in_proj"), pair("action_out_proj")
        self._time_in, self._time_out = pair("time_mlp_in"), pair("time_mlp_out")
        self._periods, layers = periods, tensors.strip_prefix("layers.")
        layer_indices = range(len({name.split(".")[0] for name in layers}))
        self._layers = [_fused_weights(layers.strip_prefix(f"{index}.")) for index in layer_indices]
        norms = [f"layers.{index}.{norm}_layernorm" for index in layer_indices for norm in ("input", "post_attention")]
        self._norms = [pair(f"{name}.dense") for name in (*norms, "norm")]
        self._size = len(tensors["layers.0.self_attn.k_proj.weight"])  # one key-value head
        self._device = self._action_in[0].device
        frequencies = (_ROPE_BASE ** -(torch.arange(0, self._size, 2) / self._size)).repeat(2)
        self._rope_frequencies = frequencies.to(self._device)
        self._schedule = functools.lru_cache(16)(self._compute_schedule)

    @torch.inference_mode()
    def _compute_schedule(self, steps: int) -> tuple[Tensor, Tensor]:
        """Return time, guidance weight and number of steps for each step, [steps, 3], and the scale, shift and gate of
        each norm for each step, [steps, norms, 3, 1, width]. Time runs from 1 (noise) to 0 (actions).
        """
        width, (min_period, max_period) = len(self._time_in[1]), self._periods
        done = torch.arange(steps, dtype=torch.float64) / steps
        times = (1 - done).float()
        weights = (1 - done) / done * (1 + (done / (1 - done)) ** 2)
        fraction = torch.linspace(0, 1, width // 2, dtype=torch.float64)
        frequencies = 2 * pi / (min_period * (max_period / min_period) ** fraction)
        phases = times.double()[:, None] * frequencies  # float64, because high frequencies amplify rounding
        embedding = torch.cat([phases.sin(), phases.cos()], 1).float().to(self._device)
        embedding = silu(linear(embedding, *self._time_in))
        embedding = silu(linear(embedding, *self._time_out))
        norms = torch.stack([linear(embedding, *norm) for norm in self._norms], 1).unflatten(2, (3, 1, width))
        norms[:, :, 0] += 1
        columns = [times, weights.clamp(max=_MAX_GUIDANCE_WEIGHT).float(), torch.full_like(times, steps)]
        return torch.stack(columns, 1).to(self._device), norms

    @torch.inference_mode()
    def denoise_step(
        self,
        x: Tensor,
        progress: Sequence[tuple[int, int]],
        prefixes: Sequence[Tensor],
        previous_chunk: Tensor,
        guidance_weights: Tensor,
    ) -> Tensor:
        """Advance chunks by one step. `progress` has the number of steps and the current step of each chunk.

        Real-time chunking: each action is guided towards the previous chunk by its weight. As in lerobot, the velocity
        is treated as a constant, so nothing is differentiated.
        """
        rows = [(*self._schedule(steps), step) for steps, step in progress]
        columns = torch.stack([schedule[step] for schedule, _, step in rows])[..., None, None]
        times, weights, step_counts = columns.unbind(1)
        norms = torch.stack([modulations[step] for _, modulations, step in rows])
        velocity = self._velocity(x, norms, prefixes)
        velocity = velocity - weights * (previous_chunk - (x - times * velocity)) * guidance_weights[..., None]
        return x - velocity / step_counts

    def _velocity(self, x: Tensor, norms: Tensor, prefixes: Sequence[Tensor]) -> Tensor:
        indices = torch.arange(x.shape[1], device=self._device)
        positions = torch.stack([indices + prefix.shape[2] for prefix in prefixes])
        angles = (positions[..., None] * self._rope_frequencies)[:, None]
        cos, sin = angles.cos(), angles.sin()
        sin[..., : self._size // 2] *= -1  # rotate-half as a roll: halves swapped, the first negated
        hidden, (*modulations, last) = linear(x, *self._action_in), norms.unbind(1)
        for index, (qkv, output, gate_up, down) in enumerate(self._layers):
            normed, gate = _adaptive_norm(hidden, modulations[2 * index])
            attended = self._attend(_matmul(normed, qkv), cos, sin, [prefix[index] for prefix in prefixes])
            hidden = torch.addcmul(hidden, gate, _matmul(attended, output))
            normed, gate = _adaptive_norm(hidden, modulations[2 * index + 1])
            wide, up = _matmul(normed, gate_up).chunk(2, -1)
            hidden = torch.addcmul(hidden, gate, _matmul(gelu(wide, approximate="tanh") * up, down))
        return linear(_adaptive_norm(hidden, last)[0], *self._action_out)

    def _attend(self, qkv: Tensor, cos: Tensor, sin: Tensor, prefixes: Sequence[Tensor]) -> Tensor:
        """Attend to the prefix and to the own chunk. With one key-value head, all query heads form one long query."""
        heads = qkv.unflatten(-1, (-1, self._size)).transpose(1, 2)
        rotated = heads[:, :-1]
        rotated, attended = rotated * cos + rotated.roll(self._size // 2, -1) * sin, list[Tensor]()
        for heads_of_row, value, prefix in zip(rotated, heads[:, -1], prefixes, strict=True):
            new = torch.stack([heads_of_row[-1], value]).to(prefix)
            keys, values = torch.cat([prefix, new], 1)[:, None, None]
            attended.append(
                scaled_dot_product_attention(heads_of_row[None, None, :-1].flatten(2, 3).to(keys), keys, values)
            )
        return torch.cat(attended).unflatten(2, (-1, qkv.shape[1])).transpose(2, 3).flatten(3)[:, 0]


def _fused_weights(layer: NamedTensors) -> list[Tensor]:
    """Return the matrices of a layer, fused where they share an input."""
    names = (("self_attn.q", "self_attn.k", "self_attn.v"), ("self_attn.o",), ("mlp.gate", "mlp.up"), ("mlp.down",))
    return [torch.cat([layer[f"{name}_proj.weight"] for name in fused]) for fused in names]


def _adaptive_norm(hidden: Tensor, modulation: Tensor) -> tuple[Tensor, Tensor]:
    """Return the modulated norm, and the gate of the residual branch."""
    scale, shift, gate = modulation.unbind(1)
    return torch.addcmul(shift, rms_norm(hidden, hidden.shape[-1:], None, _EPS), scale), gate


def _matmul(x: Tensor, matrix: Tensor) -> Tensor:
    """Multiply in the dtype of the matrix. Everything else is float32."""
    return linear(x.to(matrix.dtype), matrix).float()
