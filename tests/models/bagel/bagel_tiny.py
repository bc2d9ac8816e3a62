"""Tiny BAGEL with random weights in the published layout, and a tokenizer whose words are token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

GOLDEN = Path(__file__).parents[1] / "golden" / "bagel"
NAMES = ["<unk>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
LLM = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "vocab_size": 300}
LLM |= {"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0}
VIT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
VIT |= {"patch_size": 8, "image_size": 64, "model_type": "siglip_vision_model"}


def save(folder: Path, **llm: Any) -> str:
    """Save the golden weights, or random weights of another size of the language model."""
    mixture = load_file(GOLDEN / "weights.safetensors")
    if llm:
        mixture = enlarged(mixture, **llm)
    save_file(mixture, folder / "ema.safetensors")
    save_file(load_file(GOLDEN / "weights_vae.safetensors"), folder / "ae.safetensors")
    (folder / "llm_config.json").write_text(json.dumps({"model_type": "qwen2", **LLM, **llm}))
    (folder / "vit_config.json").write_text(json.dumps(VIT))
    words = {name: number for number, name in enumerate([*NAMES, *(f"w{number}" for number in range(5, 300))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(NAMES)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def enlarged(golden: dict[str, torch.Tensor], hidden_size: int, intermediate_size: int, num_hidden_layers: int) -> Any:
    """Return random tensors with the same names for a language model of another size."""
    draw, layer = torch.Generator().manual_seed(0), "language_model.model.layers."
    sizes = {64: hidden_size, 128: intermediate_size, 32: hidden_size // 2, 16: hidden_size // 4}
    made = {}
    for name, was in golden.items():
        if name.startswith("vit_model."):
            made[name] = was
            continue
        if name.startswith("language_model."):
            shape = [sizes.get(size, size) for size in was.shape]
        else:
            shape = [hidden_size if size == 64 else size for size in was.shape]
            shape[:-1] = was.shape[:-1] if name.endswith("pos_embed") else shape[:-1]
        if name.startswith(f"{layer}0."):
            for number in range(num_hidden_layers):
                made[name.replace(f"{layer}0.", f"{layer}{number}.")] = random_tensor(name, shape, draw)
        elif not name.startswith(layer):
            made[name] = random_tensor(name, shape, draw)
    return made


def random_tensor(name: str, shape: list[int], draw: torch.Generator) -> torch.Tensor:
    """Draw weights that keep activations in range."""
    numbers = torch.randn(shape, generator=draw)
    if len(shape) == 1:
        return numbers / 10 + ("norm" in name)
    return numbers * (0.5 if name.endswith(("embed_tokens.weight", "pos_embed")) else 1.5 / shape[1] ** 0.5)


class Flux:
    """Random tensors of a FLUX autoencoder whose levels have these widths."""

    def __init__(self, widths: tuple[int, ...], blocks: int, channels: int) -> None:
        self.draw, self.tensors, first, last = torch.Generator().manual_seed(1), {}, widths[0], widths[-1]
        self.conv("encoder.conv_in", 3, first)
        self.conv("decoder.conv_in", channels, last)
        levels = zip((first, *widths[:-1]), widths, (*widths[1:], last), strict=True)
        for number, (before, width, behind) in enumerate(levels):
            self.level(f"encoder.down.{number}", before, width, blocks)
            self.level(f"decoder.up.{number}", behind, width, blocks + 1)
            if number < len(widths) - 1:
                self.conv(f"encoder.down.{number}.downsample.conv", width, width)
            if number:
                self.conv(f"decoder.up.{number}.upsample.conv", width, width)
        for name, width, made_of in (("encoder", last, 2 * channels), ("decoder", first, 3)):
            self.middle(f"{name}.mid", last)
            self.norm(f"{name}.norm_out", width)
            self.conv(f"{name}.conv_out", width, made_of)

    def conv(self, name: str, given: int, made_of: int, size: int = 3) -> None:
        weight = torch.randn((made_of, given, size, size), generator=self.draw)
        self.tensors[f"{name}.weight"] = weight / (given * size * size) ** 0.5
        self.tensors[f"{name}.bias"] = torch.randn(made_of, generator=self.draw) / 10

    def norm(self, name: str, width: int) -> None:
        self.tensors[f"{name}.weight"] = 1 + torch.randn(width, generator=self.draw) / 10
        self.tensors[f"{name}.bias"] = torch.randn(width, generator=self.draw) / 10

    def block(self, name: str, given: int, width: int) -> None:
        for number, size in ((1, given), (2, width)):
            self.norm(f"{name}.norm{number}", size)
            self.conv(f"{name}.conv{number}", size, width)
        if given != width:
            self.conv(f"{name}.nin_shortcut", given, width, 1)

    def level(self, name: str, given: int, width: int, blocks: int) -> None:
        for number in range(blocks):
            self.block(f"{name}.block.{number}", width if number else given, width)

    def middle(self, name: str, width: int) -> None:
        self.norm(f"{name}.attn_1.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            self.conv(f"{name}.attn_1.{part}", width, width, 1)
        for number in (1, 2):
            self.block(f"{name}.block_{number}", width, width)


def words(ids: torch.Tensor) -> str:
    """Return the text of these tokens, without the start and end token."""
    return " ".join(f"w{number}" for number in ids[1:-1].tolist())
