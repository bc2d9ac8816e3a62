"""BAGEL: one transformer that reads text and pictures, writes text and draws.

The real one is a 7B mixture of transformers: text and ViT embeddings go through one expert, VAE latents through the
other, and both share the attention cache. Drawing is rectified flow with two kinds of guidance, so each step is asked
three times: under the whole prompt, under the prompt without its last text, and under its text alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mstar import KV, Float32, Image, Int64, Model, Tensor, Text, loop, walk
from mstar.testing.toy_language import MixtureLM
from mstar.testing.toy_worlds import Guidance, ImageEncoder, Vae


@dataclass
class Prompt:
    parts: list[str | np.ndarray]
    image_output: bool = True
    max_thinking_tokens: int = 0  # so many tokens it may think first
    side: int = 2
    seed: int = 0


class Bagel(Model):
    """Reads an interleaved prompt, then answers in text or, perhaps after a thought, in a picture."""

    def __init__(self) -> None:
        self.vit, self.vae, self.lm, self.guidance = ImageEncoder(), Vae(), MixtureLM(vocab=23), Guidance()

    @walk
    def read(self, tokens: Int64[Tensor, "T"], main: KV, no_image: KV) -> None:
        self.lm.prefill(tokens, main)
        self.lm.prefill(tokens, no_image)

    @walk
    def look(self, image: Float32[Tensor, "3 H W"], main: KV) -> None:
        self.lm.see(self.vae.encode(image), main)
        self.lm.see(self.vit.encode(image), main)

    @walk
    def think(self, limit: int, main: KV) -> None:
        list(self.write(limit, main))  # for what it leaves in the cache

    @walk
    def answer(self, main: KV) -> Iterator[Text]:
        yield from map(Text, self.write(30, main))

    def write(self, limit: int, kv: KV) -> Iterator[Tensor]:
        s = loop(steps=limit, token=self.lm.start())
        for _ in s:
            s.token = self.lm.decode(s.token, kv)
            yield s.token
            s.stop_when(self.lm.is_end(s.token))

    @walk
    def draw(self, side: int, seed: int, main: KV, no_text: KV, no_image: KV) -> Iterator[Image]:
        s = loop(steps=49, x=self.guidance.noise(side, seed))
        for step in s:
            v, vt, vi = (self.lm.flow(s.x, step, kv) for kv in (main, no_text, no_image))
            s.x = self.guidance.euler(s.x, self.guidance.mix(v, vt, vi), step)
        yield Image(self.vae.decode(s.x))

    async def route(self, request: Prompt) -> None:
        main, no_text, no_image = self.lm.kv(), self.lm.kv(), self.lm.kv()
        for part in request.parts:
            if isinstance(part, np.ndarray):
                await self.look(part, main)
            no_text = main.fork()  # all but the last text
            if isinstance(part, str):
                await self.read(self.lm.tokenize(part), main, no_image)
        await self.think(request.max_thinking_tokens, main)
        await (
            self.draw(request.side, request.seed, main, no_text, no_image)
            if request.image_output
            else self.answer(main)
        )


def requests() -> list[Prompt]:
    cat, dog = np.random.default_rng(0).integers(0, 255, (2, 3, 16, 16)).astype(np.float32)
    return [
        Prompt(["a bagel on the moon"], seed=7),
        Prompt([cat, "and", dog, "as one animal"], max_thinking_tokens=30, side=3),
        Prompt(["What is this?", cat], image_output=False),
    ]
