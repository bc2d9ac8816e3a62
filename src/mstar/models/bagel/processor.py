"""BAGEL processor: tokenizes text and resizes images for the VAE and the ViT.

An image keeps its aspect ratio up to whole patches. It is resized for the VAE first and from that for the ViT, as in
the published code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mstar import Component, Float32, Int64, Tensor, op
from mstar.models.bagel.checkpoint import Checkpoint
from mstar.requests import ImageInput

if TYPE_CHECKING:
    import numpy as np

_MAX_PIXELS = 14 * 14 * 9 * 1024
"""Maximum pixels of an image."""
VAE_MIN_SIDE_RATIO = 1 / 2
"""Minimum of the shorter side of a VAE image, relative to the maximum side."""
VIT_MIN_SIDE_RATIO = 16 / 70
"""Minimum of the shorter side of a ViT image, relative to the maximum side."""


class Processor(Component):
    """Tokenizer and image preprocessing of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load the tokenizer."""
        _ = self._checkpoint.special_tokens

    @op
    def tokenize(self, text: str) -> Int64[Tensor, "T"]:
        """Tokenize a text between its start and end token."""
        import torch

        special = self._checkpoint.special_tokens
        return torch.tensor([special.start, *self._checkpoint.tokenizer.encode(text).ids, special.end])

    @op
    def start_token(self) -> Int64[Tensor, "1"]:
        """Return the token before an answer."""
        import torch

        return torch.tensor([self._checkpoint.special_tokens.start])

    @op
    def end_token(self) -> Int64[Tensor, "1"]:
        """Return the token after a text."""
        import torch

        return torch.tensor([self._checkpoint.special_tokens.end])

    @op
    def vae_pixels(self, image: ImageInput) -> tuple[Float32[Tensor, "3 H W"], int, int]:
        """Resize an image for the VAE. Returns its pixels, width and height."""
        resized = self._resize_for_vae(image.pixels)
        return _to_tensor(resized), *resized.size

    @op
    def vit_pixels(self, image: ImageInput) -> Float32[Tensor, "3 H W"]:
        """Resize an image for the ViT."""
        sizes = self._checkpoint.sizes
        return _to_tensor(_resize(self._resize_for_vae(image.pixels), sizes.patch, sizes.patches, VIT_MIN_SIDE_RATIO))

    def _resize_for_vae(self, pixels: np.ndarray) -> Any:
        from PIL import Image

        sizes = self._checkpoint.sizes
        return _resize(Image.fromarray(pixels), sizes.cell, sizes.cells, VAE_MIN_SIDE_RATIO)


def _resize(image: Any, stride: int, parts: int, min_ratio: float) -> Any:
    from PIL import Image

    size = fit_size(image.size, stride, parts, min_ratio)
    return image if size == image.size else image.resize(size, Image.Resampling.BICUBIC)


def fit_size(size: tuple[int, int], stride: int, parts: int, min_ratio: float) -> tuple[int, int]:
    """Return the size in whole patches, within the maximum and the minimum side."""
    max_side = stride * parts

    def scaled(scale: float) -> tuple[int, int]:
        width, height = (max(stride, round(round(side * scale) / stride) * stride) for side in size)
        return width, height

    size = scaled(max(min(max_side / max(size), 1.0), max_side * min_ratio / min(size)))
    if size[0] * size[1] > _MAX_PIXELS:
        size = scaled(_MAX_PIXELS / (size[0] * size[1]))
    return scaled(max_side / max(size)) if max(size) > max_side else size


def _to_tensor(image: Any) -> Tensor:
    import numpy as np
    import torch

    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1) / np.float32(127.5) - 1)
