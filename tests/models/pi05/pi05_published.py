"""Our reimplementation of the published loop of pi0.5: what the PyTorch code of openpi and lerobot computes.

Prompts are padded, absent cameras are encoded and masked, masks, positions and modulations are computed in every step,
and the cache is copied. Layers are those of transformers, except adaptive norms. The packages conflict with the
libraries of this repository. `test_pi05.py` checks the reimplementation against their outputs, and
`bench/multimodal/pi05_lerobot.py` its speed against lerobot's module.
"""

from __future__ import annotations

from math import pi
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import DynamicCache, GemmaConfig, GemmaModel, SiglipVisionConfig, SiglipVisionModel

from mstar.models.pi05.checkpoint import Checkpoint

NUMBERS = 32
"""Size of an action inside the network."""
_MASKED = -2.3819763e38


class AdaptiveNorm(nn.Module):
    """RMS norm modulated by the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        normed = x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        scale, shift, gate = self.dense(condition)[:, None].chunk(3, -1)
        return normed * (1 + scale.float()) + shift.float(), gate


def conditioned_gemma(config: Any, width: int, wide: int) -> Any:
    """Action expert for a language model with this config: a Gemma with adaptive norms and its projections."""
    expert: Any = GemmaModel(type(config)(**config.to_dict() | {"hidden_size": width, "intermediate_size": wide}))
    expert.config._attn_implementation = "eager"
    for layer in expert.layers:
        layer.input_layernorm, layer.post_attention_layernorm = AdaptiveNorm(width), AdaptiveNorm(width)
    expert.norm, expert.embed_tokens = AdaptiveNorm(width), None
    expert.action_in_proj, expert.action_out_proj = nn.Linear(NUMBERS, width), nn.Linear(width, NUMBERS)
    expert.time_mlp_in, expert.time_mlp_out = nn.Linear(width, width), nn.Linear(width, width)
    return expert


class Published:
    """The networks of a folder, assembled as in the published code."""

    def __init__(self, folder: str) -> None:
        checkpoint = Checkpoint(folder)
        self.vision_encoder, self.reader, tensors = (
            checkpoint.load_vision_encoder().eval(),
            checkpoint.load_language_model().eval(),
            checkpoint.expert_tensors(),
        )
        self.reader.config._attn_implementation = "eager"
        expert = conditioned_gemma(self.reader.config, *reversed(tensors["layers.0.mlp.up_proj.weight"].shape))
        expert.load_state_dict(tensors)
        self.expert = expert.eval()

    @torch.no_grad()
    def actions(
        self, images: Tensor, cameras: Tensor, tokens: Tensor, is_token: Tensor, noise: Tensor, steps: int
    ) -> Tensor:
        """Return [rows, actions, values] for [rows, camera, 3, H, W] images with masks, and padded tokens."""
        seen = [
            self.vision_encoder.projector(self.vision_encoder(image).last_hidden_state) for image in images.unbind(1)
        ]
        given = torch.cat([*seen, self.reader.embed_tokens(tokens)], 1)
        is_there = torch.cat([cameras.repeat_interleave(seen[0].shape[1], 1), is_token], 1)
        mask = _mask(is_there[:, None] & is_there[:, :, None])
        places = is_there.cumsum(1) - 1
        read = self.reader(inputs_embeds=given, attention_mask=mask, position_ids=places, use_cache=True)
        x = noise
        for step in range(steps):
            time = torch.full((len(x),), 1 - step / steps)
            x = x - self._velocity(x, time, is_there, read.past_key_values) / steps
        return x

    def _velocity(self, x: Tensor, time: Tensor, is_there: Tensor, read: Any) -> Tensor:
        expert, count = self.expert, x.shape[1]
        conditioning = _waves(time, expert.time_mlp_in.in_features)
        conditioning = silu(expert.time_mlp_out(silu(expert.time_mlp_in(conditioning))))
        own = torch.ones(len(x), count, dtype=torch.bool)
        among = (own[:, None] & own[:, :, None]) & (own.cumsum(1)[:, None] > 0)
        mask = _mask(torch.cat([is_there[:, None].expand(-1, count, -1), among], 2))
        places = is_there.sum(1, keepdim=True) + own.cumsum(1) - 1
        kept = DynamicCache([(layer.keys.clone(), layer.values.clone()) for layer in read.layers])
        hidden = expert.action_in_proj(x)
        how = {
            "position_embeddings": expert.rotary_emb(hidden, places),
            "attention_mask": mask,
            "past_key_values": kept,
        }
        for layer in expert.layers:
            normed, gate = layer.input_layernorm(hidden, conditioning)
            hidden = hidden + gate * layer.self_attn(normed, **how)[0]
            normed, gate = layer.post_attention_layernorm(hidden, conditioning)
            hidden = hidden + gate * layer.mlp(normed)
        return expert.action_out_proj(expert.norm(hidden, conditioning)[0])


def _mask(may_see: Tensor) -> Tensor:
    return torch.where(may_see[:, None], 0.0, _MASKED)


def _waves(time: Tensor, width: int) -> Tensor:
    periods = 4e-3 * (4.0 / 4e-3) ** torch.linspace(0, 1, width // 2, dtype=torch.float64)
    phases = 2 * pi / periods * time[:, None].double()
    return torch.cat([phases.sin(), phases.cos()], 1).float()


def random_model(siglip: dict[str, Any], gemma: dict[str, Any], width: int, wide: int) -> dict[str, Tensor]:
    """Return random weights with published names for these networks and an action expert of this width."""
    sees, acts = "paligemma_with_expert.paligemma.model.", "paligemma_with_expert.gemma_expert.model."
    reader: Any = GemmaModel(GemmaConfig(num_attention_heads=8, num_key_value_heads=1, **gemma))
    vision_encoder: Any = SiglipVisionModel(SiglipVisionConfig.from_dict({**siglip, "vision_use_head": False}))
    projector = nn.Linear(siglip["hidden_size"], gemma["hidden_size"])
    tensors_by_name = {
        f"{sees}vision_tower.vision_model.{name}": one for name, one in vision_encoder.state_dict().items()
    }
    tensors_by_name |= {
        f"{sees}multi_modal_projector.linear.{name}": one for name, one in projector.state_dict().items()
    }
    tensors_by_name |= {f"{sees}language_model.{name}": one for name, one in reader.state_dict().items()}
    for name, one in conditioned_gemma(reader.config, width, wide).state_dict().items():
        tensors_by_name[f"{acts}{name}" if name.startswith(("layers.", "norm.")) else name] = one
    chosen = torch.Generator().manual_seed(0)
    scales = {name: 0.1 if one.ndim == 1 else one[0].numel() ** -0.5 for name, one in tensors_by_name.items()}
    return {name: torch.randn(one.shape, generator=chosen) * scales[name] for name, one in tensors_by_name.items()}
