"""Toy image and video generators: a denoising loop over seeded noise, and frames of rising brightness."""

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
    def noise(self, target: Float32[Tensor, "H W 3"], seed: int) -> Float32[Tensor, "H W 3"]:
        return np.random.default_rng(seed).uniform(0, 255, target.shape).astype(np.float32)

    @op
    def denoise(
        self, x: Float32[Tensor, "H W 3"], target: Float32[Tensor, "H W 3"], prompt: str
    ) -> Float32[Tensor, "H W 3"]:
        if prompt.startswith("slow"):
            time.sleep(0.2 if prompt == "slower" else 0.02)
        if prompt.startswith("break"):
            raise RuntimeError("an internal secret: /etc/passwd")
        return x + (target - x) / 2

    @op
    def target(self, request: ImageRequest) -> Float32[Tensor, "H W 3"]:
        """Image of one color, the length of the prompt; source images replace it outside of the mask."""
        image = np.full((request.height or 16, request.width or 24, 3), len(request.prompt), np.float32)
        for source in request.sources:
            mask = request.mask.pixels if request.mask is not None else np.zeros_like(source.pixels)
            image = np.where(mask > 127, image, source.pixels).astype(np.float32)
        return image

    @op
    def pixels(self, x: Float32[Tensor, "H W 3"]) -> UInt8[Tensor, "H W 3"]:
        return np.clip(np.round(x), 0, 255).astype(np.uint8)


class ImageGenerator(Model):
    """Image model: converges to one color; emits partial images."""

    def __init__(self) -> None:
        self.denoiser = Denoiser()
        self.seen: list[ImageRequest] = []

    @walk
    def draw(self, request: ImageRequest, seed: int, prompt: str, images: int) -> Iterator[Image]:
        target = self.denoiser.target(request)
        s = loop(steps=images, x=self.denoiser.noise(target, seed))
        for _ in s:
            t = loop(steps=STEPS, x=s.x)
            for _ in t:
                t.x = self.denoiser.denoise(t.x, target, prompt)
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
            raise RuntimeError("an internal secret: /etc/passwd")
        first = step * 4
        return np.stack([np.full((height, width, 3), 8 * (first + i) % 256, np.uint8) for i in range(4)])


class VideoGenerator(Model):
    """Video model: frames of rising brightness, four per chunk."""

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
