"""Toy models that draw and film: numbers from a seed, made less and less noisy by a loop."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from mstar import Component, Float32, Image, Model, Tensor, UInt8, Video, loop, op, walk
from mstar.requests import Finish, ImageRequest, VideoRequest

STEPS = 4
FPS = 8.0


class Denoiser(Component):
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
    def aim(self, drawing: ImageRequest) -> Float32[Tensor, "H W 3"]:
        """All of one colour that tells the length of the prompt; where there is a source, that, outside of the mask."""
        flat = np.full((drawing.height or 16, drawing.width or 24, 3), len(drawing.prompt), np.float32)
        for source in drawing.sources:
            is_masked = drawing.mask.pixels if drawing.mask is not None else np.zeros_like(source.pixels)
            flat = np.where(is_masked > 127, flat, source.pixels).astype(np.float32)
        return flat

    @op
    def pixels(self, x: Float32[Tensor, "H W 3"]) -> UInt8[Tensor, "H W 3"]:
        return np.clip(np.round(x), 0, 255).astype(np.uint8)


class ImageGenerator(Model):
    """Draws what is nearly one colour."""

    def __init__(self) -> None:
        self.denoiser = Denoiser()
        self.seen: list[ImageRequest] = []

    @walk
    def draw(self, drawing: ImageRequest, seed: int, prompt: str, shows: int) -> Iterator[Image]:
        aim = self.denoiser.aim(drawing)
        s = loop(steps=shows, x=self.denoiser.noise(aim, seed))
        for _ in s:
            t = loop(steps=STEPS, x=s.x)
            for _ in t:
                t.x = self.denoiser.denoise(t.x, aim, prompt)
            s.x = t.x
            yield Image(self.denoiser.pixels(s.x))

    async def route(self, request: ImageRequest) -> Finish:
        self.seen.append(request)
        await self.draw(request, request.seed, request.prompt, request.partial_images + 1)
        return Finish(prompt_tokens={"text": len(request.prompt), "image": len(request.sources)})


class FrameGenerator(Component):
    @op
    def next_frames(self, prompt: str, width: int, height: int, step: int) -> UInt8[Tensor, "F H W 3"]:
        if prompt.startswith("slow"):
            time.sleep(0.05)
        if prompt.startswith("break") and step == 1:
            raise RuntimeError("a secret of the house: /etc/passwd")
        first = step * 4
        return np.stack([np.full((height, width, 3), 8 * (first + i) % 256, np.uint8) for i in range(4)])


class VideoGenerator(Model):
    """Films what gets brighter and brighter, four frames at a time."""

    def __init__(self) -> None:
        self.frames = FrameGenerator()
        self.seen: list[VideoRequest] = []

    @walk
    def generate(self, prompt: str, width: int, height: int, chunks: int) -> Iterator[Video]:
        for step in loop(steps=chunks):
            yield Video(self.frames.next_frames(prompt, width, height, step), fps=FPS)

    async def route(self, request: VideoRequest) -> None:
        self.seen.append(request)
        width, height = (request.width or 32), (request.height or 16)
        if request.source is not None:
            height, width, _ = request.source.pixels.shape
        await self.generate(request.prompt, width, height, int(request.seconds * FPS) // 4)
