"""BAGEL: one transformer that reads text and pictures, writes text, and draws.

Text and what a ViT sees go through one set of its weights, what a VAE makes of pictures through the other; they meet in
attention. A picture is drawn by flow matching over the cache of the prompt, with guidance: a step is also asked under
the prompt without its last text, and under its texts alone. How it reads and writes is in `talk`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial

from mstar import KV, Image, Stream, Text, choose, loop, walk, windows
from mstar.asks import Chat, Drawing, Ending, Picture
from mstar.errors import Unsupported
from mstar.models.bagel.checkpoint import PUBLISHED, THINK
from mstar.models.bagel.guidance import PLAIN, Canvas, Guidance, Manner
from mstar.models.bagel.talk import BagelTalk
from mstar.models.bagel.vae import Vae
from mstar.nn.sampling import Sampling


class Bagel(BagelTalk):
    """It draws too. With `thoughts`, which say how, it thinks before that, and emits what it thinks."""

    def __init__(self, weights: str = PUBLISHED, *, manner: Manner = PLAIN, thoughts: Sampling | None = None) -> None:
        super().__init__(weights)
        self.vae, self.guidance = Vae(self.checkpoint), Guidance(self.checkpoint)
        self.manner, self.thoughts = manner, thoughts

    @walk
    def study(self, picture: Picture, seed: int, number: int, main: KV) -> tuple[int, int]:
        """Look at a picture as it would have been drawn, and as it is seen; how wide and high the next will be."""
        pixels, width, height = self.reader.pixels(picture)
        self.lm.see_latents(*self.vae.encode(pixels, seed, number), main)
        self.lm.see(self.eye.see(self.reader.sight(picture)), main)
        return width, height

    @walk
    def read_both(self, text: str, main: KV, no_image: KV) -> None:
        """Read a text after pictures, and alone."""
        tokens = self.reader.tokens(text)
        self.lm.read(tokens, main)
        self.lm.read(tokens, no_image)

    @walk
    def think(self, sampling: Sampling, main: KV) -> Iterator[Text]:
        """Write a thought, which is then a text of the prompt."""
        yield from self.write(sampling, main)
        self.lm.read(self.reader.end(), main)

    @walk
    def draw(self, canvas: Canvas, main: KV, no_text: KV, no_image: KV) -> Generator[Image, None, Ending]:
        """Draw, and show on the way what it will be."""
        sketches = Stream("sketches")
        x, begin, columns, steps, shown = self.guidance.begin(canvas)
        outer = loop(steps=shown, x=x, now=begin)
        for part in outer:
            s = loop(steps=steps[part], x=outer.x, clean=outer.x, now=outer.now)
            for _ in s:
                flow = partial(self.lm.flow, s.x, s.now.time, columns)
                v, vt = flow(main), choose(s.now.by_text, partial(flow, no_text), s.x)
                vi = choose(s.now.by_image, partial(flow, no_image), s.x)
                s.x, s.clean, s.now = self.guidance.advance(s.x, v, vt, vi, canvas, s.now)
            sketches.put(s.clean)
            outer.x, outer.now = s.x, s.now
        for sketch in windows(sketches, size=1):  # while it goes on drawing
            yield Image(self.vae.decode(sketch[0], columns))
        return self.lm.drawn(main)

    async def route(self, request: Chat | Drawing) -> Ending:
        """Answer, or read a prompt in the ways that guidance needs, and draw."""
        if isinstance(request, Chat):
            return await super().route(request)
        if request.negative or request.mask is not None:
            fix = "say in the prompt what to draw, and where"
            raise Unsupported(f"it takes neither a mask nor what not to draw\n  fix: {fix}")
        main, no_image, size = self.lm.kv(), self.lm.kv(), (0, 0)
        is_alike = not request.sources and self.thoughts is None  # what is without pictures is then the prompt
        if self.thoughts:
            await self.read_both(THINK, main, no_image)
        for number, source in enumerate(request.sources, 1):
            size = await self.study(source, request.seed, number, main)
        no_text = main.fork()
        await (self.read(request.prompt, main) if is_alike else self.read_both(request.prompt, main, no_image))
        if self.thoughts:
            await self.think(replace(self.thoughts, seed=request.seed), main)
        canvas = Canvas.of(request, self.manner, size, is_alike=is_alike)
        return await self.draw(canvas, main, no_text, no_image)
