"""The reader of BAGEL: texts as tokens, and pictures in the sizes that its two encoders were trained with.

A picture keeps its shape, as nearly as whole patches allow. It is made as large as what is drawn would be, and from
that as large as the ViT sees, which is what the published code does. What is in pictures is not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mstar import Component, Float32, Int64, Tensor, op
from mstar.models.bagel.checkpoint import Checkpoint
from mstar.requests import ImageInput

if TYPE_CHECKING:
    import numpy as np

_MAX_PIXELS = 14 * 14 * 9 * 1024
"""No picture has more pixels than this."""
VAE_MIN_SIDE_RATIO, VIT_MIN_SIDE_RATIO = 1 / 2, 16 / 70
"""How long the shorter side of a picture is at least, of the longest that there may be."""


class Processor(Component):
    """The words of a checkpoint, and how it wants pictures cut."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load the words."""
        _ = self._checkpoint.special_tokens

    @op
    def tokenize(self, text: str) -> Int64[Tensor, "T"]:
        """A text between the tokens that say where it begins and ends."""
        import torch

        special = self._checkpoint.special_tokens
        return torch.tensor([special.start, *self._checkpoint.tokenizer.encode(text).ids, special.end])

    @op
    def start_token(self) -> Int64[Tensor, "1"]:
        """What stands before a text."""
        import torch

        return torch.tensor([self._checkpoint.special_tokens.start])

    @op
    def end_token(self) -> Int64[Tensor, "1"]:
        """What stands behind a text."""
        import torch

        return torch.tensor([self._checkpoint.special_tokens.end])

    @op
    def vae_pixels(self, image: ImageInput) -> tuple[Float32[Tensor, "3 H W"], int, int]:
        """A picture as the VAE takes it, how wide it then is, and how high."""
        drawn = self._resize_for_vae(image.pixels)
        return _to_tensor(drawn), *drawn.size

    @op
    def vit_pixels(self, image: ImageInput) -> Float32[Tensor, "3 H W"]:
        """A picture as the ViT takes it."""
        sizes = self._checkpoint.sizes
        return _to_tensor(_resize(self._resize_for_vae(image.pixels), sizes.patch, sizes.patches, VIT_MIN_SIDE_RATIO))

    def _resize_for_vae(self, pixels: np.ndarray) -> Any:
        from PIL import Image

        sizes = self._checkpoint.sizes
        return _resize(Image.fromarray(pixels), sizes.cell, sizes.cells, VAE_MIN_SIDE_RATIO)


def _resize(picture: Any, stride: int, parts: int, shortest: float) -> Any:
    from PIL import Image

    size = fit_size(picture.size, stride, parts, shortest)
    return picture if size == picture.size else picture.resize(size, Image.Resampling.BICUBIC)


def fit_size(size: tuple[int, int], stride: int, parts: int, shortest: float) -> tuple[int, int]:
    """The size of a picture in whole parts: no side longer than there may be, the shorter as long as it has to be."""
    longest = stride * parts

    def scaled(scale: float) -> tuple[int, int]:
        width, height = (max(stride, round(round(side * scale) / stride) * stride) for side in size)
        return width, height

    size = scaled(max(min(longest / max(size), 1.0), longest * shortest / min(size)))
    if size[0] * size[1] > _MAX_PIXELS:
        size = scaled(_MAX_PIXELS / (size[0] * size[1]))
    return scaled(longest / max(size)) if max(size) > longest else size


def _to_tensor(picture: Any) -> Tensor:
    import numpy as np
    import torch

    return torch.from_numpy(np.asarray(picture).transpose(2, 0, 1) / np.float32(127.5) - 1)
