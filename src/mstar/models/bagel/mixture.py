"""Mixture of transformers (MoT): a Qwen2 with two sets of weights, one for text and ViT tokens, one for latents.

Tokens of a forward pass are grouped by their set; both groups meet in attention, which the caller passes in: this
module knows neither pages nor requests. Tensor names are the published ones, except that matrices with the same input
are fused. No library implements this network.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from mstar.errors import LoadError, format_names
from mstar.models.bagel.checkpoint import Sizes, load_tensors
from mstar.nn import native
from mstar.nn.compile.elementwise import in_whole_vectors
from mstar.nn.native.row_linear import RowLinear

Attend = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Maps queries, keys and values, [tokens, heads, size] each, and a layer index to [tokens, heads, size]."""
EXPERT_SUFFIXES = ("", "_moe_gen")
"""Suffix of the tensor names of each set."""
_FUSED_MATRICES = {"qkv": ("q_proj", "k_proj", "v_proj"), "gate_up": ("gate_proj", "up_proj")}
_FREQUENCIES = 256


class RmsNorm(nn.Module):
    """RMS normalization."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.empty(size)), epsilon

    def forward(self, x: Tensor) -> Tensor:
        """x / rms(x) * weight, over the last dimension."""
        if native.is_native(x.dtype, x.device):
            return native.rms_norm(x, self.weight, self.epsilon)
        return rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class TransposedLinear(nn.Module):
    """Linear layer with its weight as [in, out]: faster in torch for the token counts of a few images.

    Where there are native products, the first forward packs the weight for them: no row depends on others.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map [tokens, in] to [tokens, out]."""
        if native.has_row_products(x.dtype, x.device):
            return self._packed(x)
        return torch.mm(x, self.weight) if self.bias is None else torch.addmm(self.bias, x, self.weight)

    @functools.cached_property
    def _packed(self) -> RowLinear:
        weight = self.weight
        self.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)  # not twice in memory
        return RowLinear(weight.T.contiguous(), self.bias)


class Expert(nn.Module):
    """One set of weights of a layer, for tokens of [tokens, width]."""

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
        """Apply the output projection and the MLP."""
        x = x + self.o_proj(attended)
        gate_and_up = self.gate_up(self.post_attention_layernorm(x))
        if native.is_native(x.dtype, x.device):
            inner = native.silu_mul(gate_and_up)
        else:
            gate, up = gate_and_up.chunk(2, -1)
            inner = silu(gate) * up
        return x + self.down_proj(inner)


class TimestepEmbedder(nn.Module):
    """Embeds times between 0 and 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp: Any = nn.Sequential(nn.Linear(_FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, times: Tensor) -> Tensor:
        """Map [times] to [times, width]."""
        half = _FREQUENCIES // 2
        angles = times[:, None] * torch.exp(torch.arange(half, device=times.device) * (-math.log(10_000) / half))
        return self.mlp(torch.cat([angles.cos(), angles.sin()], 1).to(self.mlp[0].weight.dtype))


class Mixture(nn.Module):
    """All layers of both sets, with the token, latent, time and position embeddings."""

    def __init__(self, config: Any, latents: int, places: int) -> None:
        super().__init__()
        self.config, width, layers = config, config.hidden_size, range(config.num_hidden_layers)
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.get_input_embeddings = lambda: self.embed_tokens  # the interface that Decoder calls
        self.layers: Any = nn.ModuleList(nn.ModuleList(Expert(config) for _ in EXPERT_SUFFIXES) for _ in layers)
        self.norms: Any = nn.ModuleList(RmsNorm(width, config.rms_norm_eps) for _ in EXPERT_SUFFIXES)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.vae2llm, self.llm2vae = nn.Linear(latents, width), nn.Linear(width, latents)
        self.time_embedder, self.places = TimestepEmbedder(width), nn.Parameter(torch.empty(places, width))

    def forward(self, parts: Sequence[Tensor], positions: Tensor, attend: Attend) -> list[Tensor]:
        """Return the hidden states of each group, [tokens, width]. `positions` covers the groups in order."""
        rotate, sizes = self._rotary(positions), [len(part) for part in parts]
        for layer_index, layer in enumerate(self.layers):
            experts = list(zip(layer, parts, strict=False))
            heads = zip(*(expert.project_qkv(part) for expert, part in experts), strict=True)
            query, key, value = (torch.cat(head_parts) for head_parts in heads)
            attended = attend(rotate(query), rotate(key), value, layer_index).flatten(1).split(sizes)
            parts = [expert.finish_layer(part, own) for (expert, part), own in zip(experts, attended, strict=True)]
        return [norm(part) for norm, part in zip(self.norms, parts, strict=False)]

    def _rotary(self, positions: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the rotary position embedding as a function of [tokens, heads, size]."""
        half, dtype = self.layers[0][0].size // 2, self.norms[0].weight.dtype
        fractions = torch.arange(half, device=positions.device) / half
        angles = positions[:, None] * self.config.rope_parameters["rope_theta"] ** -fractions
        tables = (in_whole_vectors(angles, f"aten.{name}.default") for name in ("cos", "sin"))
        cosines, sines = (table.repeat(1, 2).to(dtype) for table in tables)

        def rotate(x: Tensor) -> Tensor:
            if native.is_native(x.dtype, x.device):
                return native.rotate(x.transpose(0, 1)[None], cosines, sines)[0].transpose(0, 1)
            return x * cosines[:, None] + torch.cat([-x[..., half:], x[..., :half]], -1) * sines[:, None]

        return rotate


def published_names(name: str) -> list[str]:
    """Return the published tensors that are concatenated into one tensor of a Mixture."""
    if name == "places":
        return ["latent_pos_embed.pos_embed"]
    if name.startswith(("vae2llm.", "llm2vae.", "time_embedder.")):
        return [name]
    if name.startswith("norms."):
        return [f"language_model.model.norm{EXPERT_SUFFIXES[int(name.split('.')[1])]}.weight"]
    if not name.startswith("layers."):
        return [f"language_model.{'' if name.startswith('lm_head') else 'model.'}{name}"]
    _, layer, expert, part, parameter = name.split(".")
    prefix, suffix = f"language_model.model.layers.{layer}", EXPERT_SUFFIXES[int(expert)]
    if part in ("gate_up", "down_proj"):
        return [f"{prefix}.mlp{suffix}.{matrix}.{parameter}" for matrix in _FUSED_MATRICES.get(part, (part,))]
    module = "" if part.endswith("layernorm") else "self_attn."
    return [f"{prefix}.{module}{matrix}{suffix}.{parameter}" for matrix in _FUSED_MATRICES.get(part, (part,))]


def load_mixture(config: Any, sizes: Sizes, tensors: Mapping[str, Tensor]) -> Mixture:
    """Build a Mixture from published tensors. Raises LoadError unless the names match exactly."""
    with torch.device("meta"):
        mixture = Mixture(config, sizes.block**2 * sizes.channels, sizes.cells**2)
    names = {name: published_names(name) for name in mixture.state_dict()}
    if mismatch := {*tensors} ^ {source for sources in names.values() for source in sources}:
        what = f"missing or unexpected tensors for {config.num_hidden_layers} layers: {format_names(mismatch)}"
        raise LoadError(f"{what}\n  fix: use the llm_config.json that the weights were saved with")
    fused = {name: [tensors[source] for source in sources] for name, sources in names.items()}
    state = {name: torch.cat(parts) if len(parts) > 1 else parts[0] for name, parts in fused.items()}
    state |= {name: state[name].T.contiguous() for name in state if name.startswith("layers.") and state[name].ndim > 1}
    return cast("Mixture", load_tensors(mixture, state))
