"""The action expert of pi0.5: a Gemma whose norms are told how far a chunk of actions is, for a batch of chunks.

transformers has no such norms, and spends most of its time around these small layers: there are ten steps of them. Here
matrices that read the same input are one, and what the norms are told is computed once for each number of steps. It
looks at the keys and values of a prefix, and adds nothing to them. It knows neither robots nor pictures.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import pi

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, rms_norm, scaled_dot_product_attention, silu

from mstar.models.pi05.checkpoint import NamedTensors

_EPS, _ROPE_BASE, _MAX_GUIDANCE_WEIGHT = 1e-6, 10_000.0, 10.0
"""The last is how hard a chunk is at most pulled to what is left of the one before."""


class ActionExpert:
    """Tensors by the names they have in the file. `periods` are those of the waves that tell how far a chunk is."""

    def __init__(self, tensors: NamedTensors, periods: tuple[float, float]) -> None:
        def pair(name: str) -> tuple[Tensor, Tensor]:
            return tensors[f"{name}.weight"].float(), tensors[f"{name}.bias"].float()

        self._action_in, self._action_out = pair("action_in_proj"), pair("action_out_proj")
        self._time_in, self._time_out = pair("time_mlp_in"), pair("time_mlp_out")
        self._periods, layers = periods, tensors.strip_prefix("layers.")
        numbers = range(len({name.split(".")[0] for name in layers}))
        self._layers = [_fused_weights(layers.strip_prefix(f"{number}.")) for number in numbers]
        norms = [f"layers.{number}.{norm}_layernorm" for number in numbers for norm in ("input", "post_attention")]
        self._norms = [pair(f"{name}.dense") for name in (*norms, "norm")]
        self._size = len(tensors["layers.0.self_attn.k_proj.weight"])  # there is one head of keys
        self._rope_frequencies = (_ROPE_BASE ** -(torch.arange(0, self._size, 2) / self._size)).repeat(2)
        self._schedule = functools.lru_cache(16)(self._compute_schedule)

    @torch.inference_mode()
    def _compute_schedule(self, steps: int) -> tuple[Tensor, Tensor]:
        """How far from actions each step is, from 1 to 0, and how hard it is pulled, [steps, 2]; and for each of its
        norms a scale, a shift, and how much of what follows is taken, [steps, norms, 3, 1, width].
        """
        width, (least, most) = len(self._time_in[1]), self._periods
        done = torch.arange(steps, dtype=torch.float64) / steps
        times = (1 - done).float()
        pulls = (1 - done) / done * (1 + (done / (1 - done)) ** 2)
        waves = 2 * pi / (least * (most / least) ** torch.linspace(0, 1, width // 2, dtype=torch.float64))
        phases = times.double()[:, None] * waves  # some are quick: in less than float64 they would be elsewhere
        told = silu(linear(torch.cat([phases.sin(), phases.cos()], 1).float(), *self._time_in))
        told = silu(linear(told, *self._time_out))
        norms = torch.stack([linear(told, *norm) for norm in self._norms], 1).unflatten(2, (3, 1, width))
        norms[:, :, 0] += 1
        return torch.stack([times, pulls.clamp(max=_MAX_GUIDANCE_WEIGHT).float()], 1), norms

    @torch.inference_mode()
    def denoise_step(
        self,
        x: Tensor,
        progress: Sequence[tuple[int, int]],
        prefixes: Sequence[Tensor],
        previous_chunk: Tensor,
        guidance_weights: Tensor,
    ) -> Tensor:
        """Chunks one step further; of each, `wishes` has the number of its steps and which of them this is.

        A chunk is pulled to what is `left` of the one before, each action as far as that is trusted. The velocity
        counts as a constant there, as in lerobot: nothing is differentiated.
        """
        told, norms = (torch.stack([self._schedule(steps)[what][step] for steps, step in progress]) for what in (0, 1))
        times, pulls = told[..., None, None].unbind(1)
        velocity = self._velocity(x, norms, prefixes)
        velocity = velocity - pulls * (previous_chunk - (x - times * velocity)) * guidance_weights[..., None]
        return x - velocity / torch.tensor([steps for steps, _ in progress])[:, None, None]

    def _velocity(self, x: Tensor, norms: Tensor, prefixes: Sequence[Tensor]) -> Tensor:
        places = torch.stack([torch.arange(x.shape[1]) + prefix.shape[2] for prefix in prefixes])
        angles = (places[..., None] * self._rope_frequencies)[:, None]
        cos, sin = angles.cos(), angles.sin()
        sin[..., : self._size // 2] *= -1  # what is turned has its halves swapped, and the first negated
        hidden, (*told, last) = linear(x, *self._action_in), norms.unbind(1)
        for number, (attend, output, widen, narrow) in enumerate(self._layers):
            normed, gate = _adaptive_norm(hidden, told[2 * number])
            seen = self._attend(_matmul(normed, attend), cos, sin, [prefix[number] for prefix in prefixes])
            hidden = torch.addcmul(hidden, gate, _matmul(seen, output))
            normed, gate = _adaptive_norm(hidden, told[2 * number + 1])
            wide, up = _matmul(normed, widen).chunk(2, -1)
            hidden = torch.addcmul(hidden, gate, _matmul(gelu(wide, approximate="tanh") * up, narrow))
        return linear(_adaptive_norm(hidden, last)[0], *self._action_out)

    def _attend(self, joined: Tensor, cos: Tensor, sin: Tensor, prefixes: Sequence[Tensor]) -> Tensor:
        """Actions see all of a prefix and each other. All heads ask one head of keys, so they are one long query."""
        heads = joined.unflatten(-1, (-1, self._size)).transpose(1, 2)
        turned = heads[:, :-1]
        turned, seen = turned * cos + turned.roll(self._size // 2, -1) * sin, list[Tensor]()
        for own, value, prefix in zip(turned, heads[:, -1], prefixes, strict=True):
            new = torch.stack([own[-1], value]).to(prefix)
            keys, values = torch.cat([prefix, new], 1)[:, None, None]
            seen.append(scaled_dot_product_attention(own[None, None, :-1].flatten(2, 3).to(keys), keys, values))
        return torch.cat(seen).unflatten(2, (-1, joined.shape[1])).transpose(2, 3).flatten(3)[:, 0]


def _fused_weights(layer: NamedTensors) -> list[Tensor]:
    """The matrices of one layer, those of one input joined."""
    names = (("self_attn.q", "self_attn.k", "self_attn.v"), ("self_attn.o",), ("mlp.gate", "mlp.up"), ("mlp.down",))
    return [torch.cat([layer[f"{name}_proj.weight"] for name in joined]) for joined in names]


def _adaptive_norm(hidden: Tensor, modulation: Tensor) -> tuple[Tensor, Tensor]:
    """What a norm gives, and how much of what is made of that is taken."""
    scale, shift, gate = modulation.unbind(1)
    return torch.addcmul(shift, rms_norm(hidden, hidden.shape[-1:], None, _EPS), scale), gate


def _matmul(x: Tensor, matrix: Tensor) -> Tensor:
    """A product in the matrix's dtype. All else is in float32."""
    return linear(x.to(matrix.dtype), matrix).float()
