"""FLUX.1: text-to-image diffusion with previews.

Components: two text encoders (`clip`, `t5`), the `denoiser` with its scheduler, and `vae`. The walk encodes the prompt,
runs one denoising loop, and decodes the latents after the last step and after each requested preview. The guidance
scale is an input of the network: it has no negative prompt. It does not edit images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mstar import Image, Model, Stream, loop, walk, windows
from mstar.errors import Unsupported
from mstar.models.diffusion.checkpoint import Checkpoint
from mstar.models.diffusion.flux_denoiser import PATCH, FluxDenoiser
from mstar.models.diffusion.params import DefaultParams, DiffusionParams, resolve_params
from mstar.models.diffusion.text_encoders import LongT5, PooledClip
from mstar.models.diffusion.vae import ImageVae
from mstar.nn.diffusion.flow_head import DenoisingState
from mstar.nn.encoder import TenantState
from mstar.requests import ImageRequest

DEFAULT_WEIGHTS = "hub:black-forest-labs/FLUX.1-dev"
SIDE_LATENTS = 128
"""Latents of a side by default: 1024 pixels."""
MAX_SIDE_PX = 2048
DEFAULT_GUIDANCE = 3.5
DEFAULT_STEPS = {True: 28, False: 4}
"""Denoising steps by whether the network reads a guidance scale: those of FLUX.1-dev and FLUX.1-schnell."""


class Flux(Model):
    """Generates images. `weights` is a folder in the diffusers layout, or `hub:NAME`."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.checkpoint = Checkpoint(weights)
        self.clip, self.t5 = PooledClip(self.checkpoint), LongT5(self.checkpoint, "_2")
        self.denoiser, self.vae = FluxDenoiser(self.checkpoint), ImageVae(self.checkpoint)

    @walk
    def draw(self, params: DiffusionParams, spans: list[int], image_count: int) -> Iterator[Image]:
        """Generate one image and emit it after each span of denoising steps."""
        pooled = self.clip.encode_pooled(params.prompts, self.clip.state(TenantState))
        text = self.t5.encode(params.prompts, self.t5.state(TenantState))
        schedule_state, previews = self.denoiser.state(DenoisingState), Stream("previews")

        s = loop(steps=image_count, x=self.denoiser.noise(params))
        for preview_index in s:
            t = loop(steps=spans[preview_index], x=s.x)
            for _ in t:
                t.x = self.denoiser.step(t.x, text, pooled, params, schedule_state)
            s.x = t.x
            previews.put(s.x)
        for latents in windows(previews, size=1):  # decoded while the loop above runs
            yield Image(self.vae.decode_image(latents[0]))

    async def route(self, request: ImageRequest) -> None:
        """Resolve the parameters and draw."""
        if request.sources or request.mask or request.negative_prompt:
            what = "FLUX does not edit images and reads no negative prompt"
            raise Unsupported(f"{what}\n  fix: leave out source images, mask and negative prompt")
        scale = 2 ** (len(self.checkpoint.config("vae")["block_out_channels"]) - 1)
        steps = DEFAULT_STEPS[self.checkpoint.config("transformer").get("guidance_embeds", False)]
        defaults = DefaultParams(scale * SIDE_LATENTS, scale * SIDE_LATENTS, steps, DEFAULT_GUIDANCE, MAX_SIDE_PX)
        params = replace(resolve_params(request, defaults, scale, PATCH), prompts=[request.prompt])
        spans = request.steps_per_image(params.steps)
        await self.draw(params, spans, len(spans))
