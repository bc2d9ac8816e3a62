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
from mstar.errors import Unsupported
from mstar.models.bagel.chat import BagelChat
from mstar.models.bagel.checkpoint import DEFAULT_WEIGHTS, THINKING_PROMPT
from mstar.models.bagel.guidance import DEFAULT_GUIDANCE, DrawParams, Guidance, GuidanceParams
from mstar.models.bagel.vae import Vae
from mstar.requests import ChatRequest, Finish, ImageInput, ImageRequest, Sampling


class Bagel(BagelChat):
    """It draws too. With `thoughts`, which say how, it thinks before that, and emits what it thinks."""

    def __init__(
        self,
        weights: str = DEFAULT_WEIGHTS,
        *,
        guidance_params: GuidanceParams = DEFAULT_GUIDANCE,
        thinking_sampling: Sampling | None = None,
    ) -> None:
        super().__init__(weights)
        self.vae, self.guidance = Vae(self.checkpoint), Guidance(self.checkpoint)
        self.guidance_params, self.thinking_sampling = guidance_params, thinking_sampling

    @walk
    def read_source_image(self, image: ImageInput, seed: int, image_index: int, main: KV) -> tuple[int, int]:
        """Look at a picture as it would have been drawn, and as it is seen; how wide and high the next will be."""
        pixels, width, height = self.processor.vae_pixels(image)
        self.lm.read_latents(*self.vae.encode(pixels, seed, image_index), main)
        self.lm.read_image(self.vision_encoder.encode(self.processor.vit_pixels(image)), main)
        return width, height

    @walk
    def read_text_in_both(self, text: str, main: KV, no_image: KV) -> None:
        """Read a text after pictures, and alone."""
        tokens = self.processor.tokenize(text)
        self.lm.hidden_states(tokens, main)
        self.lm.hidden_states(tokens, no_image)

    @walk
    def think(self, sampling: Sampling, main: KV) -> Iterator[Text]:
        """Write a thought, which is then a text of the prompt."""
        yield from self.write(sampling, main)
        self.lm.hidden_states(self.processor.end_token(), main)

    @walk
    def draw(self, params: DrawParams, main: KV, no_text: KV, no_image: KV) -> Generator[Image, None, Finish]:
        """Draw, and show on the way what it will be."""
        sketches = Stream("previews")
        x, begin, columns, steps, shown = self.guidance.begin(params)
        outer = loop(steps=shown, x=x, now=begin)
        for part in outer:
            s = loop(steps=steps[part], x=outer.x, clean=outer.x, now=outer.now)
            for _ in s:
                flow = partial(self.lm.flow, s.x, s.now.time, columns)
                v, vt = flow(main), choose(s.now.is_text_guided, partial(flow, no_text), s.x)
                vi = choose(s.now.is_image_guided, partial(flow, no_image), s.x)
                s.x, s.clean, s.now = self.guidance.advance(s.x, v, vt, vi, params, s.now)
            sketches.put(s.clean)
            outer.x, outer.now = s.x, s.now
        for sketch in windows(sketches, size=1):  # while it goes on drawing
            yield Image(self.vae.decode(sketch[0], columns))
        return self.lm.finish_image(main)

    async def route(self, request: ChatRequest | ImageRequest) -> Finish:
        """Answer, or read a prompt in the ways that guidance needs, and draw."""
        if isinstance(request, ChatRequest):
            return await super().route(request)
        if request.negative_prompt or request.mask is not None:
            fix = "say in the prompt what to draw, and where"
            raise Unsupported(f"it takes neither a mask nor what not to draw\n  fix: {fix}")
        main, no_image, size = self.lm.kv(), self.lm.kv(), (0, 0)
        is_alike = not request.sources and self.thinking_sampling is None  # what is without pictures is then the prompt
        if self.thinking_sampling:
            await self.read_text_in_both(THINKING_PROMPT, main, no_image)
        for number, source in enumerate(request.sources, 1):
            size = await self.read_source_image(source, request.seed, number, main)
        no_text = main.fork()
        await (self.read(request.prompt, main) if is_alike else self.read_text_in_both(request.prompt, main, no_image))
        if self.thinking_sampling:
            await self.think(replace(self.thinking_sampling, seed=request.seed), main)
        canvas = DrawParams.from_request(request, self.guidance_params, size, is_text_only=is_alike)
        return await self.draw(canvas, main, no_text, no_image)
