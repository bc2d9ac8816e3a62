"""Wan: a text, and perhaps a picture to begin with, becomes a film, out of noise, step by step.

One encoder reads the prompt, a transformer takes noise away from all frames at once, and a decoder makes pixels of one
frame of latents after the other. Weights whose transformers take turns (Wan2.2-A14B) are refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Model, Video, loop, walk
from mstar.asks import Filming, Picture
from mstar.errors import Unsupported
from mstar.models.diffusion.checkpoint import Checkpoint
from mstar.models.diffusion.denoiser import FilmDenoiser
from mstar.models.diffusion.texts import Umt5
from mstar.models.diffusion.vae import FilmVae, Seen, scales
from mstar.models.diffusion.wish import Usual, Wish, wished
from mstar.nn.encoder import Owner
from mstar.nn.flow import Denoising

PUBLISHED = "hub:Wan-AI/Wan2.2-TI2V-5B-Diffusers"
USUAL = Usual(width=1280, height=704, steps=50, guidance=5.0, most=1280)
LONGEST = 121
"""So many frames it was taught at most; many more would not fit in memory either."""


class Wan(Model):
    """Films. `weights` is a folder in the layout of diffusers, or `hub:` and a name; `fps` is what they were taught."""

    def __init__(self, weights: str = PUBLISHED, *, fps: float = 24.0) -> None:
        self.checkpoint, self.fps = Checkpoint(weights), fps
        self.umt5, self.denoiser = Umt5(self.checkpoint), FilmDenoiser(self.checkpoint)
        self.vae = FilmVae(self.checkpoint)

    @walk
    def shoot(self, wish: Wish, source: Picture | None) -> Iterator[Video]:
        """Film, and show frames as they are decoded."""
        text = self.umt5.read(wish.prompts, self.umt5.state(Owner))
        known = self.vae.known(wish.size, source)
        way, seen = self.denoiser.state(Denoising), self.vae.state(Seen)

        s = loop(steps=wish.steps, x=self.denoiser.noise(wish, known))
        for _ in s:
            s.x = self.denoiser.step(s.x, known, text, wish, way)
        for step in loop(steps=wish.size[0]):
            yield Video(self.vae.frames(s.x, step, seen), fps=self.fps)

    async def route(self, request: Filming) -> None:
        """Film."""
        if request.source is not None and not self.checkpoint.config("", "model_index.json").get("expand_timesteps"):
            what = "these weights begin with no picture"
            raise Unsupported(f"{what}\n  fix: leave it out, or serve Wan2.2-TI2V-5B")
        scale, rate = scales(self.checkpoint)
        if (count := int(request.seconds * self.fps)) > LONGEST:
            what = f"it films {LONGEST / self.fps:.1f} seconds at most, and not {request.seconds:g}"
            raise Unsupported(f"{what}\n  fix: ask for less")
        frames = count // rate + 1  # the first one stands for itself
        patch = self.checkpoint.config("transformer")["patch_size"][-1]
        await self.shoot(wished(request, USUAL, scale, patch, frames), request.source)
