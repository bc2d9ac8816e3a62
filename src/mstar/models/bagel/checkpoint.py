"""The files of a BAGEL model in the layout of its hub, and the tensors of each of its parts.

ema.safetensors has the language model, the ViT and what joins them, ae.safetensors the VAE. How pictures are cut, the
shapes of tensors say, so only two descriptions are read: llm_config.json and vit_config.json. No library is loaded
until tensors or words are asked for.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mstar.errors import LoadError
from mstar.nn.weights.sources import Weights

if TYPE_CHECKING:
    from torch import Tensor, nn

DEFAULT_WEIGHTS = "hub:ByteDance-Seed/BAGEL-7B-MoT"
MIXTURE_FILE, VAE_FILE = "ema.safetensors", "ae.safetensors"
THINKING_PROMPT = (
    "You should first think about the planning process in the mind and then generate the image. \n"
    "The planning process is enclosed within <think> </think> tags, "
    "i.e. <think> planning process here </think> image here"
)
"""What it was trained to be told, the blank at the end of a line included, if it is to think before it draws."""
_FIX = f"give a folder with the files of {DEFAULT_WEIGHTS}"


class SpecialTokens(NamedTuple):
    """Tokens that are no text."""

    start: int
    """Before each text; an answer follows it."""
    end: int
    image_start: int
    image_end: int


_SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>")


class Sizes(NamedTuple):
    """How pictures are cut, in pixels and in parts for each side."""

    patch: int
    """A patch of what the ViT sees."""
    patches: int
    """So many of them a picture may have."""
    cell: int
    """What a token that is drawn stands for."""
    cells: int
    """So many of them a picture may have."""
    block: int
    """So many latents a token has."""
    channels: int
    """A latent has so many numbers."""


class Checkpoint:
    """A folder with two descriptions, two files of tensors, and words."""

    def __init__(self, weights: str) -> None:
        self._weights = Weights(weights)

    def read_config(self, name: str) -> dict[str, Any]:
        """What one of the descriptions says."""
        return json.loads(self._file(name).read_bytes())

    def tensors(self, name: str, *prefixes: str) -> dict[str, Tensor]:
        """The tensors of a file whose names begin so. They are mapped: what is not used is not read."""
        from safetensors import SafetensorError, safe_open

        file = self._file(name)
        try:
            with safe_open(file, framework="pt") as opened:
                names = [one for one in opened.keys() if one.startswith(prefixes or "")]  # noqa: SIM118 - it is no dict
                return {one: opened.get_tensor(one) for one in names}
        except SafetensorError as error:
            raise LoadError(f"{file} is no complete safetensors file: {error}\n  fix: fetch it again") from error

    @functools.cached_property
    def sizes(self) -> Sizes:
        """How pictures are cut."""
        mixture, vae = self._tensor_shapes(MIXTURE_FILE), self._tensor_shapes(VAE_FILE)
        try:
            channels = vae["decoder.conv_in.weight"][1]
            block = isqrt(mixture["vae2llm.weight"][1] // channels)
            cells, patches = (isqrt(mixture[f"{of}_pos_embed.pos_embed"][0]) for of in ("latent", "vit"))
        except KeyError as error:
            raise LoadError(f"{self._file(MIXTURE_FILE).parent} lacks the tensor {error}\n  fix: {_FIX}") from error
        halvings = sum(name.endswith("downsample.conv.weight") for name in vae)
        patch = self.read_config("vit_config.json")["patch_size"]
        return Sizes(patch, patches, block << halvings, cells, block, channels)

    @functools.cached_property
    def special_tokens(self) -> SpecialTokens:
        """Its tokens that are no text."""
        found = [self.tokenizer.token_to_id(name) for name in _SPECIAL_TOKENS]
        if None in found:
            what = f"{_SPECIAL_TOKENS[found.index(None)]} is no token of {self._file(MIXTURE_FILE).parent}"
            raise LoadError(f"{what}\n  fix: {_FIX}")
        return SpecialTokens(*found)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """Text to tokens and back. What looks like one of its special tokens is text, whoever wrote it."""
        made = self._weights.tokenizer()
        made.encode_special_tokens = True
        return made

    def _file(self, name: str) -> Path:
        file = self._weights.path(name) / name
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: {_FIX}")
        return file

    def _tensor_shapes(self, name: str) -> Mapping[str, list[int]]:
        """The shapes of a file's tensors, as its head says: a route and a conductor have no torch."""
        with self._file(name).open("rb") as file:
            head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return {one: said["shape"] for one, said in head.items() if "shape" in said}


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A network that was made without memory, with these tensors. Raises LoadError unless all of it fits."""
    try:
        module.load_state_dict(tensors, strict=True, assign=True)
    except RuntimeError as error:
        raise LoadError(f"these weights do not fit: {error}\n  fix: {_FIX}") from error
    return module.eval().requires_grad_(requires_grad=False)
