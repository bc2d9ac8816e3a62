"""Toy models that draw and film: numbers from a seed, made less and less noisy by a loop."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from mstar import Component, Float32, Image, Model, Tensor, UInt8, Video, loop, op, walk
from mstar.asks import Drawing, Ending, Filming

STEPS = 4
FPS = 8.0


class Brush(Component):
    @op
    def noise(self, aim: Float32[Tensor, "H W 3"], seed: int) -> Float32[Tensor, "H W 3"]:
        return np.random.default_rng(seed).uniform(0, 255, aim.shape).astype(np.float32)

    @op
    def denoise(
        self, x: Float32[Tensor, "H W 3"], aim: Float32[Tensor, "H W 3"], prompt: str
    ) -> Float32[Tensor, "H W 3"]:
        if prompt.startswith("slow"):
            time.sleep(0.02)
        if prompt.startswith("break"):
            raise RuntimeError("a secret of the house: /etc/passwd")
        return x + (aim - x) / 2

    @op
    def aim(self, drawing: Drawing) -> Float32[Tensor, "H W 3"]:
        """All of one colour that tells the length of the prompt; where there is a source, that, outside of the mask."""
        flat = np.full((drawing.height or 16, drawing.width or 24, 3), len(drawing.prompt), np.float32)
        for source in drawing.sources:
            is_masked = drawing.mask.pixels if drawing.mask is not None else np.zeros_like(source.pixels)
            flat = np.where(is_masked > 127, flat, source.pixels).astype(np.float32)
        return flat

    @op
    def pixels(self, x: Float32[Tensor, "H W 3"]) -> UInt8[Tensor, "H W 3"]:
        return np.clip(np.round(x), 0, 255).astype(np.uint8)


class Painter(Model):
    """Draws what is nearly one colour."""

    def __init__(self) -> None:
        self.brush = Brush()
        self.seen: list[Drawing] = []

    @walk
    def draw(self, drawing: Drawing, seed: int, prompt: str, shows: int) -> Iterator[Image]:
        aim = self.brush.aim(drawing)
        s = loop(steps=shows, x=self.brush.noise(aim, seed))
        for _ in s:
            t = loop(steps=STEPS, x=s.x)
            for _ in t:
                t.x = self.brush.denoise(t.x, aim, prompt)
            s.x = t.x
            yield Image(self.brush.pixels(s.x))

    async def route(self, request: Drawing) -> Ending:
        self.seen.append(request)
        await self.draw(request, request.seed, request.prompt, request.partials + 1)
        return Ending(read={"text": len(request.prompt), "image": len(request.sources)})


class Camera(Component):
    @op
    def film(self, prompt: str, width: int, height: int, step: int) -> UInt8[Tensor, "F H W 3"]:
        if prompt.startswith("slow"):
            time.sleep(0.05)
        if prompt.startswith("break") and step == 1:
            raise RuntimeError("a secret of the house: /etc/passwd")
        first = step * 4
        return np.stack([np.full((height, width, 3), 8 * (first + i) % 256, np.uint8) for i in range(4)])


class Filmer(Model):
    """Films what gets brighter and brighter, four frames at a time."""

    def __init__(self) -> None:
        self.camera = Camera()
        self.seen: list[Filming] = []

    @walk
    def shoot(self, prompt: str, width: int, height: int, chunks: int) -> Iterator[Video]:
        for step in loop(steps=chunks):
            yield Video(self.camera.film(prompt, width, height, step), fps=FPS)

    async def route(self, request: Filming) -> None:
        self.seen.append(request)
        width, height = (request.width or 32), (request.height or 16)
        if request.source is not None:
            height, width, _ = request.source.pixels.shape
        await self.shoot(request.prompt, width, height, int(request.seconds * FPS) // 4)
