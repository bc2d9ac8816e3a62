"""The mixture of transformers: a Qwen2 that has two sets of weights, one for text and sights, one for what is drawn.

No library has it. Tokens of a forward stand in parts, those of each set together; they meet in attention, which is
given: this module knows neither pages nor requests. Names of tensors are the published ones, but for matrices that
read the same input, which are joined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from mstar.errors import LoadError, format_names
from mstar.models.bagel.checkpoint import Sizes, load_tensors
from mstar.nn import native

Attend = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Queries, keys and values, [tokens, heads, size] each, and the number of a layer, to [tokens, heads, size]."""
EXPERT_SUFFIXES = ("", "_moe_gen")
"""How the names of each set end."""
_FUSED_MATRICES = {"qkv": ("q_proj", "k_proj", "v_proj"), "gate_up": ("gate_proj", "up_proj")}
_FREQUENCIES = 256


class RmsNorm(nn.Module):
    """Divides by the root mean square."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.empty(size)), epsilon

    def forward(self, x: Tensor) -> Tensor:
        """x / rms(x) * weight, over the last dimension."""
        if native.is_native(x.dtype, x.device):
            return native.rms_norm(x, self.weight, self.epsilon)
        return rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class TransposedLinear(nn.Module):
    """A product with a matrix that lies as [given, made]: so torch is done sooner with the tokens of a few pictures."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, given] to [tokens, made]."""
        return torch.mm(x, self.weight) if self.bias is None else torch.addmm(self.bias, x, self.weight)


class Expert(nn.Module):
    """One set of weights of a layer. Tokens are [tokens, width]."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, inner, epsilon = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = width // self.heads
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(width, epsilon), RmsNorm(width, epsilon)
        self.q_norm, self.k_norm = RmsNorm(self.size, epsilon), RmsNorm(self.size, epsilon)
        self.qkv = TransposedLinear(width, (self.heads + 2 * self.key_heads) * self.size, bias=True)
        self.o_proj = TransposedLinear(self.heads * self.size, width)
        self.gate_up, self.down_proj = TransposedLinear(width, 2 * inner), TransposedLinear(inner, width)

    def project_qkv(self, x: Tensor) -> Sequence[Tensor]:
        """Queries, keys and values, [tokens, heads, size] each."""
        heads = self.qkv(self.input_layernorm(x)).unflatten(1, (-1, self.size))
        query, key, value = heads.split([self.heads, self.key_heads, self.key_heads], 1)
        return self.q_norm(query), self.k_norm(key), value

    def finish_layer(self, x: Tensor, attended: Tensor) -> Tensor:
        """What follows attention."""
        x = x + self.o_proj(attended)
        both = self.gate_up(self.post_attention_layernorm(x))
        if native.is_native(x.dtype, x.device):
            inner = native.silu_mul(both)
        else:
            gate, up = both.chunk(2, -1)
            inner = silu(gate) * up
        return x + self.down_proj(inner)


class TimestepEmbedder(nn.Module):
    """Moments between 0 and 1 as embeddings."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp: Any = nn.Sequential(nn.Linear(_FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, times: Tensor) -> Tensor:
        """[moments] to [moments, width]."""
        half = _FREQUENCIES // 2
        angles = times[:, None] * torch.exp(torch.arange(half) * (-math.log(10_000) / half))
        return self.mlp(torch.cat([angles.cos(), angles.sin()], 1).to(self.mlp[0].weight.dtype))


class Mixture(nn.Module):
    """All layers of both sets, and what goes in and out: words, latents, moments and places."""

    def __init__(self, config: Any, latents: int, places: int) -> None:
        super().__init__()
        self.config, width, layers = config, config.hidden_size, range(config.num_hidden_layers)
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.get_input_embeddings = lambda: self.embed_tokens  # which is how a Decoder asks for it
        self.layers: Any = nn.ModuleList(nn.ModuleList(Expert(config) for _ in EXPERT_SUFFIXES) for _ in layers)
        self.norms: Any = nn.ModuleList(RmsNorm(width, config.rms_norm_eps) for _ in EXPERT_SUFFIXES)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.vae2llm, self.llm2vae = nn.Linear(latents, width), nn.Linear(width, latents)
        self.time_embedder, self.places = TimestepEmbedder(width), nn.Parameter(torch.empty(places, width))

    def forward(self, parts: Sequence[Tensor], positions: Tensor, attend: Attend) -> list[Tensor]:
        """Hidden states of the tokens of each set, [tokens, width]. Positions are those of all, part after part."""
        turn, sizes = self._rotary(positions), [len(part) for part in parts]
        for number, layer in enumerate(self.layers):
            experts = list(zip(layer, parts, strict=False))
            heads = zip(*(expert.project_qkv(part) for expert, part in experts), strict=True)
            query, key, value = (torch.cat(own) for own in heads)
            attended = attend(turn(query), turn(key), value, number).flatten(1).split(sizes)
            parts = [expert.behind(part, own) for (expert, part), own in zip(experts, attended, strict=True)]
        return [norm(part) for norm, part in zip(self.norms, parts, strict=False)]

    def _rotary(self, positions: Tensor) -> Callable[[Tensor], Tensor]:
        """What turns [tokens, heads, size] to their positions."""
        half, kind = self.layers[0][0].size // 2, self.lm_head.weight.dtype
        angles = positions[:, None] * self.config.rope_parameters["rope_theta"] ** (-torch.arange(half) / half)
        cosines, sines = (one.repeat(1, 2).to(kind) for one in (angles.cos(), angles.sin()))

        def turn(x: Tensor) -> Tensor:
            if native.is_native(x.dtype, x.device):
                return native.rotate(x.transpose(0, 1)[None], cosines, sines)[0].transpose(0, 1)
            return x * cosines[:, None] + torch.cat([-x[..., half:], x[..., :half]], -1) * sines[:, None]

        return turn


def published_names(name: str) -> list[str]:
    """The published tensors that make one of a Mixture's, one below the other."""
    if name == "places":
        return ["latent_pos_embed.pos_embed"]
    if name.startswith(("vae2llm.", "llm2vae.", "time_embedder.")):
        return [name]
    if name.startswith("norms."):
        return [f"language_model.model.norm{EXPERT_SUFFIXES[int(name.split('.')[1])]}.weight"]
    if not name.startswith("layers."):
        return [f"language_model.{'' if name.startswith('lm_head') else 'model.'}{name}"]
    _, layer, number, part, what = name.split(".")
    front, kind = f"language_model.model.layers.{layer}", EXPERT_SUFFIXES[int(number)]
    if part in ("gate_up", "down_proj"):
        return [f"{front}.mlp{kind}.{one}.{what}" for one in _FUSED_MATRICES.get(part, (part,))]
    inside = "" if part.endswith("layernorm") else "self_attn."
    return [f"{front}.{inside}{one}{kind}.{what}" for one in _FUSED_MATRICES.get(part, (part,))]


def load_mixture(config: Any, sizes: Sizes, tensors: Mapping[str, Tensor]) -> Mixture:
    """A Mixture of published tensors. Raises LoadError unless it is made of exactly these."""
    with torch.device("meta"):
        made = Mixture(config, sizes.block**2 * sizes.channels, sizes.cells**2)
    names = {name: published_names(name) for name in made.state_dict()}
    if wrong := {*tensors} ^ {one for ones in names.values() for one in ones}:
        what = f"a mixture of {config.num_hidden_layers} layers lacks or does not take {format_names(wrong)}"
        raise LoadError(f"{what}\n  fix: use the llm_config.json that the weights were saved with")
    found = {name: [tensors[one] for one in ones] for name, ones in names.items()}
    own = {name: torch.cat(ones) if len(ones) > 1 else ones[0] for name, ones in found.items()}
    own |= {name: own[name].T.contiguous() for name in own if name.startswith("layers.") and own[name].ndim > 1}
    return cast("Mixture", load_tensors(made, own))
