"""Our reimplementation of the published loop of BAGEL in plain torch, with the same forward passes.

The published code is in no package, so it cannot run here; `test_bagel.py` checks the reimplementation against its
outputs.
Requests run one by one. Each guidance branch is a forward pass of its own, which allocates the keys and values of its
whole context in every layer; contexts are copied when they branch.
"""

from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import (
    conv2d,
    embedding,
    gelu,
    group_norm,
    interpolate,
    layer_norm,
    linear,
    pad,
    scaled_dot_product_attention,
    silu,
)

BEGIN, END, PICTURE, PICTURE_END = 1, 2, 3, 4


@dataclass
class Context:
    """KV cache of one context."""

    length: int = 0
    rope: int = 0
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)


@dataclass
class GenerationParams:
    """Arguments of the published image generation, with its defaults except the number of timesteps."""

    moments: int = 25
    text: float = 4.0
    image: float = 1.5
    interval: tuple[float, float] = (0.4, 1.0)
    renorm: str = "global"
    renorm_min: float = 0.0


class Published:
    """A checkpoint in the Hugging Face layout."""

    def __init__(self, folder: str) -> None:
        path = Path(folder)
        self.tensors = load_file(path / "ema.safetensors")
        self.vae = Autoencoder(load_file(path / "ae.safetensors"))
        self.llm, self.vit = (json.loads((path / f"{name}_config.json").read_bytes()) for name in ("llm", "vit"))
        self.forwards = 0

    def linear(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        x = x.float()
        return self.tensors[f"{name}.weight"] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def embed(self, *ids: int) -> Tensor:
        return embedding(torch.tensor(ids), self.tensors["language_model.model.embed_tokens.weight"])

    # ---------------------------------------------------------------- language model
    def mlp(self, name: str, x: Tensor) -> Tensor:
        gate, up = self.linear(f"{name}.gate_proj", x), self.linear(f"{name}.up_proj", x)
        return self.linear(f"{name}.down_proj", silu(gate) * up)

    def forward(
        self, x: Tensor, at: Tensor, context: Context, *, is_drawn: bool = False, keeps: bool, is_causal: bool
    ) -> Tensor:
        """Return hidden states of new tokens. Latents use the other weights, except the markers around them."""
        self.forwards += 1
        kinds = [("", slice(None))]
        if is_drawn:
            kinds = [("", torch.tensor([0, len(x) - 1])), ("_moe_gen", torch.arange(1, len(x) - 1))]
        size = self.llm["hidden_size"] // self.llm["num_attention_heads"]
        angles = at[:, None].float() * (1.0 / self.llm["rope_theta"] ** (torch.arange(0, size, 2).float() / size))
        cos, sin = (torch.cat([one, one], -1)[:, None] for one in (angles.cos(), angles.sin()))
        places = torch.arange(context.length), torch.arange(context.length, context.length + len(x))
        lengths = torch.tensor([len(x)]), torch.tensor([context.length])
        for layer in range(self.llm["num_hidden_layers"]):
            front = f"language_model.model.layers.{layer}."
            q, k, v = self.heads(front, self.normed(f"{front}input_layernorm", x, kinds), kinds, size)
            q, k = (one * cos + turned(one) * sin for one in (q, k))
            keys, values = merged(context.keys.get(layer), k, places), merged(context.values.get(layer), v, places)
            bounds(*lengths)
            attended = attend(q, keys, values, is_causal=is_causal).flatten(1)
            for kind, own in kinds:
                attended[own] = self.linear(f"{front}self_attn.o_proj{kind}", attended[own])
            x = x + attended
            inner = torch.zeros_like(x)
            parts = [(kind, own, x[own]) for kind, own in kinds]
            parts = [(kind, own, self.norm(f"{front}post_attention_layernorm{kind}", one)) for kind, own, one in parts]
            for kind, own, one in parts:
                inner[own] = self.mlp(f"{front}mlp{kind}", one)
            x = x + inner
            if keeps:
                context.keys[layer], context.values[layer] = keys, values
        if keeps:
            context.length += len(x)
        return self.normed("language_model.model.norm", x, kinds)

    def normed(self, name: str, x: Tensor, kinds: list[tuple[str, Any]]) -> Tensor:
        out = torch.zeros_like(x)
        for kind, own in kinds:
            out[own] = self.norm(f"{name}{kind}", x[own])
        return out

    def heads(self, front: str, x: Tensor, kinds: list[tuple[str, Any]], size: int) -> list[Tensor]:
        """Return queries, keys and values, with queries and keys normalized."""
        count, made = self.llm["num_attention_heads"], self.llm["num_key_value_heads"]
        out = [x.new_zeros((len(x), number * size)) for number in (count, made, made)]
        parts = [(kind, own, x[own]) for kind, own in kinds]
        for one, name in zip(out, "qkv", strict=True):
            for kind, own, part in parts:
                one[own] = self.linear(f"{front}self_attn.{name}_proj{kind}", part)
        out = [one.unflatten(1, (-1, size)) for one in out]
        for one, name in zip(out[:2], "qk", strict=True):
            for kind, own in kinds:
                one[own] = self.norm(f"{front}self_attn.{name}_norm{kind}", one[own])
        return out

    # ---------------------------------------------------------------- prefill
    def read(self, ids: list[int], context: Context) -> Tensor:
        at = torch.arange(context.rope, context.rope + len(ids))
        context.rope += len(ids)
        return self.forward(self.embed(*ids), at, context, keeps=True, is_causal=True)

    def read_picture(self, tokens: Tensor, context: Context, *, is_drawn: bool) -> None:
        given = torch.cat([self.embed(PICTURE), tokens, self.embed(PICTURE_END)])
        at = torch.full((len(given),), context.rope)
        context.rope += 1
        self.forward(given, at, context, is_drawn=is_drawn, keeps=True, is_causal=False)

    def seen(self, pixels: Tensor) -> Tensor:
        """Encode an image with the ViT and the connector."""
        patch, front = self.vit["patch_size"], "vit_model.vision_model."
        places = self.places(pixels.shape[1] // patch, pixels.shape[2] // patch, "vit")
        x = self.linear(f"{front}embeddings.patch_embedding", patches(pixels, patch))
        x = x + self.tensors[f"{front}embeddings.position_embedding.weight"][places]
        for number in range(self.vit["num_hidden_layers"] - 1):
            layer = f"{front}encoder.layers.{number}."
            normed = self.layer_norm(f"{layer}layer_norm1", x)
            heads = [
                self.linear(f"{layer}self_attn.{one}_proj", normed).unflatten(1, (self.vit["num_attention_heads"], -1))
                for one in "qkv"
            ]
            x = x + self.linear(f"{layer}self_attn.out_proj", attend(*heads, is_causal=False).flatten(1))
            inner = self.linear(f"{layer}mlp.fc1", self.layer_norm(f"{layer}layer_norm2", x))
            x = x + self.linear(f"{layer}mlp.fc2", gelu(inner, approximate="tanh"))
        x = self.layer_norm(f"{front}post_layernorm", x)
        x = self.linear("connector.fc2", gelu(self.linear("connector.fc1", x), approximate="tanh"))
        return x + self.tensors["vit_pos_embed.pos_embed"][places]

    def layer_norm(self, name: str, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"], 1e-6)

    def places(self, height: int, width: int, table: str) -> Tensor:
        side = int(len(self.tensors[f"{table}_pos_embed.pos_embed"]) ** 0.5)
        return (torch.arange(height)[:, None] * side + torch.arange(width)).flatten()

    def latents(self, x: Tensor, time: float, height: int, width: int) -> Tensor:
        """Embed latents at a time."""
        times = torch.tensor([time] * len(x))
        angles = times[:, None] * torch.exp(-math.log(10_000) * torch.arange(128) / 128)
        moments = torch.cat([angles.cos(), angles.sin()], -1)
        moments = self.linear("time_embedder.mlp.2", silu(self.linear("time_embedder.mlp.0", moments)))
        places = self.tensors["latent_pos_embed.pos_embed"][self.places(height, width, "latent")]
        return self.linear("vae2llm", x) + moments + places

    # ---------------------------------------------------------------- generation
    def write(self, context: Context, count: int) -> list[int]:
        """Decode greedily. The first token is the start of a text."""
        context, tokens = deepcopy(context), [BEGIN]
        while True:
            hidden = self.read(tokens[-1:], context)
            following = int(self.linear("language_model.lm_head", hidden[-1]).argmax())
            if following == END or len(tokens) == count:
                return tokens
            tokens.append(following)

    def contexts(self, parts: list[Any], system: list[int] | None = None) -> tuple[Context, Context, Context]:
        """Return the prompt, the prompt without its last text, and its texts alone.

        An image is given as its VAE pixels, the VAE noise, and its ViT pixels.
        """
        main, no_text, no_image = Context(), Context(), Context()
        if system is not None:
            self.read(system, main)
            self.read(system, no_image)
        for part in parts:
            if isinstance(part, tuple):
                pixels, noise, sight = part
                latents, height, width = self.vae.encoded(pixels, noise)
                self.read_picture(self.latents(latents, 0.0, height, width), main, is_drawn=True)
                self.read_picture(self.seen(sight), main, is_drawn=False)
                no_text = deepcopy(main)
            else:
                no_text = deepcopy(main)
                self.read(part, main)
                self.read(part, no_image)
        return main, no_text, no_image

    def draw(self, x: Tensor, columns: int, contexts: tuple[Context, ...], how: GenerationParams) -> Tensor:
        """Return the latents at the end of the flow."""
        moments = torch.linspace(1, 0, how.moments)
        moments = 3.0 * moments / (1 + 2.0 * moments)
        for time, following in zip(moments[:-1].tolist(), moments[1:].tolist(), strict=True):
            is_on = how.interval[0] < time <= how.interval[1]
            x = x - self.guided(x, time, columns, contexts, how, is_on=is_on) * (time - following)
        return x

    def guided(
        self, x: Tensor, time: float, columns: int, contexts: tuple[Context, ...], how: GenerationParams, *, is_on: bool
    ) -> Tensor:
        main, no_text, no_image = contexts
        v = self.flow(x, time, columns, main)
        if not is_on or how.text <= 1:
            return v
        without_text = self.flow(x, time, columns, no_text)
        without_image = self.flow(x, time, columns, no_image) if how.image > 1 else v
        guided = without_text + how.text * (v - without_text)
        axis = None if how.renorm == "global" else -1
        if how.renorm == "text_channel":
            guided = shortened(guided, v, axis, how.renorm_min)
        if how.image > 1:
            guided = without_image + how.image * (guided - without_image)
        return guided if how.renorm == "text_channel" else shortened(guided, v, axis, how.renorm_min)

    def flow(self, x: Tensor, time: float, columns: int, context: Context) -> Tensor:
        drawn = torch.arange(1, len(x) + 1)
        given = x.new_zeros((len(x) + 2, self.llm["hidden_size"]))
        given[[0, -1]] = self.embed(PICTURE, PICTURE_END)
        given[drawn] = self.latents(x, time, len(x) // columns, columns)
        at = torch.full((len(given),), context.rope)
        hidden = self.forward(given, at, context, is_drawn=True, keeps=False, is_causal=False)
        return self.linear("llm2vae", hidden)[drawn]

    def picture(self, x: Tensor, columns: int) -> Tensor:
        """Decode latents to pixels from 0 to 255."""
        image = self.vae.decoded(x, columns)
        return ((image * 0.5 + 0.5).clamp(0, 1).permute(1, 2, 0) * 255).to(torch.uint8)


def merged(past: Tensor | None, new: Tensor, places: tuple[Tensor, Tensor]) -> Tensor:
    if past is None:
        return new
    both = new.new_zeros((len(past) + len(new), *new.shape[1:]))
    both[places[1]] = new
    both[places[0]] = past
    return both


def bounds(new: Tensor, past: Tensor) -> tuple[Any, ...]:
    """Compute the bounds that the published attention kernel needs in every layer; torch does not need them."""
    both = past + new
    ends = [pad(torch.cumsum(one, dim=0), (1, 0)).to(torch.int32) for one in (new, both)]
    return *ends, max(new).item(), max(both).item(), sum(new) + sum(past)


def attend(query: Tensor, keys: Tensor, values: Tensor, *, is_causal: bool) -> Tensor:
    """Attend over [tokens, heads, size] each; new tokens are at the end."""
    mask = None
    if is_causal:
        mask = torch.ones((len(query), len(keys)), dtype=torch.bool).tril(len(keys) - len(query))
    q, k, v = (one.transpose(0, 1)[None] for one in (query, keys, values))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)


def turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def shortened(guided: Tensor, v: Tensor, axis: int | None, least: float) -> Tensor:
    long, longer = (one.norm(dim=axis, keepdim=axis is not None) for one in (v, guided))
    return guided * (long / (longer + 1e-8)).clamp(least, 1.0)


def patches(picture: Tensor, size: int) -> Tensor:
    """[channels, height, width] to [patches, size * size * channels]."""
    cut = picture.unflatten(2, (-1, size)).unflatten(1, (-1, size))
    return torch.einsum("chpwq->hwpqc", cut).flatten(2).flatten(0, 1)


class Autoencoder:
    """FLUX autoencoder with the published tensor names."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.levels = sum(name.endswith("downsample.conv.weight") for name in tensors) + 1

    def conv(self, name: str, x: Tensor, **how: Any) -> Tensor:
        weight = self.tensors[f"{name}.weight"]
        how.setdefault("padding", weight.shape[-1] // 2)
        return conv2d(x, weight, self.tensors[f"{name}.bias"], **how)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return group_norm(x, 32, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"], 1e-6)

    def block(self, name: str, x: Tensor) -> Tensor:
        inner = self.conv(f"{name}.conv1", silu(self.norm(f"{name}.norm1", x)))
        inner = self.conv(f"{name}.conv2", silu(self.norm(f"{name}.norm2", inner)))
        is_wider = f"{name}.nin_shortcut.weight" in self.tensors
        return inner + (self.conv(f"{name}.nin_shortcut", x) if is_wider else x)

    def blocks(self, name: str, x: Tensor) -> Tensor:
        number = 0
        while f"{name}.block.{number}.conv1.weight" in self.tensors:
            x = self.block(f"{name}.block.{number}", x)
            number += 1
        return x

    def middle(self, name: str, x: Tensor) -> Tensor:
        x = self.block(f"{name}.block_1", x)
        normed = self.norm(f"{name}.attn_1.norm", x)
        q, k, v = (self.conv(f"{name}.attn_1.{one}", normed).flatten(2).transpose(1, 2) for one in "qkv")
        attended = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + self.conv(f"{name}.attn_1.proj_out", attended)
        return self.block(f"{name}.block_2", x)

    def encoded(self, pixels: Tensor, noise: Tensor) -> tuple[Tensor, int, int]:
        """Encode an image to tokens, and return rows and columns."""
        x = self.conv("encoder.conv_in", pixels[None])
        for level in range(self.levels):
            x = self.blocks(f"encoder.down.{level}", x)
            if level < self.levels - 1:
                x = self.conv(f"encoder.down.{level}.downsample.conv", pad(x, (0, 1, 0, 1)), stride=2, padding=0)
        x = silu(self.norm("encoder.norm_out", self.middle("encoder.mid", x)))
        mean, spread = self.conv("encoder.conv_out", x)[0].chunk(2)
        latents = 0.3611 * (mean + torch.exp(0.5 * spread) * noise - 0.1159)
        return patches(latents, 2), latents.shape[1] // 2, latents.shape[2] // 2

    def decoded(self, x: Tensor, columns: int) -> Tensor:
        """Decode tokens to pixels around 0."""
        cells = x.unflatten(0, (-1, columns)).unflatten(2, (2, 2, -1))
        latents = torch.einsum("hwpqc->chpwq", cells).flatten(3).flatten(1, 2)
        y = self.middle("decoder.mid", self.conv("decoder.conv_in", latents[None] / 0.3611 + 0.1159))
        for level in reversed(range(self.levels)):
            y = self.blocks(f"decoder.up.{level}", y)
            if level:
                y = self.conv(f"decoder.up.{level}.upsample.conv", interpolate(y, scale_factor=2.0, mode="nearest"))
        return self.conv("decoder.conv_out", silu(self.norm("decoder.norm_out", y)))[0]
