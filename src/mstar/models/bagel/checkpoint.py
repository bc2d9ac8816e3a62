"""BAGEL checkpoint: reads the published files and splits their tensors by component.

ema.safetensors holds the language model, the ViT and the connectors; ae.safetensors holds the VAE. Patch sizes are
derived from tensor shapes, so only llm_config.json and vit_config.json are read. No library is imported until tensors
or the tokenizer are requested.
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
MIXTURE_FILE = "ema.safetensors"
VAE_FILE = "ae.safetensors"
THINKING_PROMPT = (
    "You should first think about the planning process in the mind and then generate the image. \n"
    "The planning process is enclosed within <think> </think> tags, "
    "i.e. <think> planning process here </think> image here"
)
"""System prompt of the thinking mode, exactly as in training, including the trailing space."""
_FIX = f"use a folder with the files of {DEFAULT_WEIGHTS}"


class SpecialTokens(NamedTuple):
    """Ids of the special tokens."""

    start: int
    """Precedes every text, including an answer."""
    end: int
    image_start: int
    image_end: int


_SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>")


class Sizes(NamedTuple):
    """Sizes of patches and latent cells of an image, in pixels and per side."""

    patch: int
    """Side of a ViT patch in pixels."""
    patches: int
    """Maximum ViT patches per side."""
    cell: int
    """Side in pixels of the image area of one latent token."""
    cells: int
    """Maximum latent tokens per side."""
    block: int
    """Side of a latent token in latents."""
    channels: int
    """Channels per latent."""


class Checkpoint:
    """Folder with two configs, two tensor files, and a tokenizer."""

    def __init__(self, weights: str) -> None:
        self._weights = Weights(weights)

    def read_config(self, name: str) -> dict[str, Any]:
        """Read one of the JSON configs."""
        return json.loads(self._file(name).read_bytes())

    def tensors(self, name: str, *prefixes: str) -> dict[str, Tensor]:
        """Return the tensors whose names start with a prefix.

        The file is memory-mapped: unused tensors are not read.
        """
        from safetensors import SafetensorError, safe_open

        file = self._file(name)
        try:
            with safe_open(file, framework="pt") as opened:
                names = [key for key in opened.keys() if key.startswith(prefixes or "")]  # noqa: SIM118 - not a dict
                return {key: opened.get_tensor(key) for key in names}
        except SafetensorError as error:
            raise LoadError(f"{file} is not a valid safetensors file: {error}\n  fix: download it again") from error

    @functools.cached_property
    def sizes(self) -> Sizes:
        """Image sizes, derived from tensor shapes."""
        mixture, vae = self._tensor_shapes(MIXTURE_FILE), self._tensor_shapes(VAE_FILE)
        try:
            channels = vae["decoder.conv_in.weight"][1]
            block = isqrt(mixture["vae2llm.weight"][1] // channels)
            cells, patches = (isqrt(mixture[f"{kind}_pos_embed.pos_embed"][0]) for kind in ("latent", "vit"))
        except KeyError as error:
            raise LoadError(f"{self._file(MIXTURE_FILE).parent} lacks the tensor {error}\n  fix: {_FIX}") from error
        downsamples = sum(name.endswith("downsample.conv.weight") for name in vae)
        patch = self.read_config("vit_config.json")["patch_size"]
        return Sizes(patch, patches, block << downsamples, cells, block, channels)

    @functools.cached_property
    def special_tokens(self) -> SpecialTokens:
        """Special tokens of the tokenizer."""
        ids = [self.tokenizer.token_to_id(name) for name in _SPECIAL_TOKENS]
        if None in ids:
            what = f"the tokenizer of {self._file(MIXTURE_FILE).parent} has no token {_SPECIAL_TOKENS[ids.index(None)]}"
            raise LoadError(f"{what}\n  fix: {_FIX}")
        return SpecialTokens(*ids)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """Tokenizer that never parses special tokens in text."""
        tokenizer = self._weights.tokenizer()
        tokenizer.encode_special_tokens = True
        return tokenizer

    def _file(self, name: str) -> Path:
        file = self._weights.path(name) / name
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: {_FIX}")
        return file

    def _tensor_shapes(self, name: str) -> Mapping[str, list[int]]:
        """Read tensor shapes from the file header, without torch: routes and the conductor do not import it."""
        with self._file(name).open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return {tensor: entry["shape"] for tensor, entry in header.items() if "shape" in entry}


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Load tensors into a module on the meta device. Raises LoadError unless names and shapes match exactly."""
    try:
        module.load_state_dict(tensors, strict=True, assign=True)
    except RuntimeError as error:
        raise LoadError(f"the weights do not match the network: {error}\n  fix: {_FIX}") from error
    return module.eval().requires_grad_(requires_grad=False)
