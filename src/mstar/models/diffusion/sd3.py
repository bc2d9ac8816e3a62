"""Stable Diffusion 3: a text becomes a picture, out of noise, step by step.

Three encoders read the prompt, a transformer takes noise away in as many steps as are wished for, and a decoder makes
pixels of what is left; in between too, for who wants to see it. It does not change pictures that exist.
"""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Image, Model, Stream, loop, walk, windows
from mstar.errors import Unsupported
from mstar.models.diffusion.checkpoint import Checkpoint
from mstar.models.diffusion.denoiser import ImageDenoiser
from mstar.models.diffusion.params import DefaultParams, DiffusionParams, resolve_params
from mstar.models.diffusion.text_encoders import T5, ClipTextEncoder
from mstar.models.diffusion.vae import ImageVae
from mstar.nn.diffusion.flow_head import DenoisingState
from mstar.nn.encoder import TenantState
from mstar.requests import ImageRequest

DEFAULT_WEIGHTS = "hub:stabilityai/stable-diffusion-3-medium-diffusers"
DEFAULT_STEPS, DEFAULT_GUIDANCE = 28, 7.0
"""As diffusers has it."""


class StableDiffusion3(Model):
    """Draws. `weights` is a folder in the layout of diffusers, or `hub:` and a name."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.checkpoint = Checkpoint(weights)
        self.clip, self.clip_2 = ClipTextEncoder(self.checkpoint), ClipTextEncoder(self.checkpoint, "_2")
        self.t5 = T5(self.checkpoint, "_3")
        self.denoiser, self.vae = ImageDenoiser(self.checkpoint), ImageVae(self.checkpoint)

    @walk
    def draw(self, params: DiffusionParams, spans: list[int], image_count: int) -> Iterator[Image]:
        """Draw, and show it after each of these spans of steps."""
        clip, clip_2 = (one.encode_pooled(params.prompts, one.state(TenantState)) for one in (self.clip, self.clip_2))
        text, whole = self.denoiser.combine_embeddings(
            *clip, *clip_2, self.t5.encode(params.prompts, self.t5.state(TenantState))
        )
        way, shown = self.denoiser.state(DenoisingState), Stream("shown")

        s = loop(steps=image_count, x=self.denoiser.noise(params))
        for show in s:
            t = loop(steps=spans[show], x=s.x)
            for _ in t:
                t.x = self.denoiser.step(t.x, text, whole, params, way)
            s.x = t.x
            shown.put(s.x)
        for latents in windows(shown, size=1):  # while the loop above goes on
            yield Image(self.vae.decode_image(latents[0]))

    async def route(self, request: ImageRequest) -> None:
        """Draw, in the size that the weights were trained for if none is wished for."""
        if request.sources or request.mask:
            raise Unsupported("it does not change pictures\n  fix: ask for a new one")
        vae, transformer = self.checkpoint.config("vae"), self.checkpoint.config("transformer")
        scale = 2 ** (len(vae["block_out_channels"]) - 1)
        side, patch = scale * transformer["sample_size"], transformer["patch_size"]
        most = scale * patch * transformer["pos_embed_max_size"]  # it has no more positions
        wish = resolve_params(request, DefaultParams(side, side, DEFAULT_STEPS, DEFAULT_GUIDANCE, most), scale, patch)
        spans = request.steps_per_image(wish.steps)
        await self.draw(wish, spans, len(spans))
