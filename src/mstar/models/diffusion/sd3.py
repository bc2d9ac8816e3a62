"""Stable Diffusion 3: a text becomes a picture, out of noise, step by step.

Three encoders read the prompt, a transformer takes noise away in as many steps as are wished for, and a decoder makes
pixels of what is left; in between too, for who wants to see it. It does not change pictures that exist.
"""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Image, Model, Stream, loop, walk, windows
from mstar.asks import Drawing
from mstar.errors import Unsupported
from mstar.models.diffusion.checkpoint import Checkpoint
from mstar.models.diffusion.denoiser import PictureDenoiser
from mstar.models.diffusion.texts import T5, Clip
from mstar.models.diffusion.vae import PictureVae
from mstar.models.diffusion.wish import Usual, Wish, wished
from mstar.nn.encoder import Owner
from mstar.nn.flow import Denoising

PUBLISHED = "hub:stabilityai/stable-diffusion-3-medium-diffusers"
STEPS, GUIDANCE = 28, 7.0
"""As diffusers has it."""


class StableDiffusion3(Model):
    """Draws. `weights` is a folder in the layout of diffusers, or `hub:` and a name."""

    def __init__(self, weights: str = PUBLISHED) -> None:
        self.checkpoint = Checkpoint(weights)
        self.clip, self.clip_2 = Clip(self.checkpoint), Clip(self.checkpoint, "_2")
        self.t5 = T5(self.checkpoint, "_3")
        self.denoiser, self.vae = PictureDenoiser(self.checkpoint), PictureVae(self.checkpoint)

    @walk
    def draw(self, wish: Wish, spans: list[int], shows: int) -> Iterator[Image]:
        """Draw, and show it after each of these spans of steps."""
        clip, clip_2 = (one.read_whole(wish.prompts, one.state(Owner)) for one in (self.clip, self.clip_2))
        text, whole = self.denoiser.told(*clip, *clip_2, self.t5.read(wish.prompts, self.t5.state(Owner)))
        way, shown = self.denoiser.state(Denoising), Stream("shown")

        s = loop(steps=shows, x=self.denoiser.noise(wish))
        for show in s:
            t = loop(steps=spans[show], x=s.x)
            for _ in t:
                t.x = self.denoiser.step(t.x, text, whole, wish, way)
            s.x = t.x
            shown.put(s.x)
        for latents in windows(shown, size=1):  # while the loop above goes on
            yield Image(self.vae.picture(latents[0]))

    async def route(self, request: Drawing) -> None:
        """Draw, in the size that the weights were trained for if none is wished for."""
        if request.sources or request.mask:
            raise Unsupported("it does not change pictures\n  fix: ask for a new one")
        vae, transformer = self.checkpoint.config("vae"), self.checkpoint.config("transformer")
        scale = 2 ** (len(vae["block_out_channels"]) - 1)
        side, patch = scale * transformer["sample_size"], transformer["patch_size"]
        most = scale * patch * transformer["pos_embed_max_size"]  # it has no more positions
        wish = wished(request, Usual(side, side, STEPS, GUIDANCE, most), scale, patch)
        spans = request.spans(wish.steps)
        await self.draw(wish, spans, len(spans))
