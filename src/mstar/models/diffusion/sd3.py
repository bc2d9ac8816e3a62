"""Stable Diffusion 3: text-to-image diffusion with previews.

Components: three text encoders (`clip`, `clip_2`, `t5`), the MMDiT `denoiser` with its scheduler, and `vae`. The walk
encodes the prompts, runs one denoising loop, and decodes the latents after the last step and after each requested
preview. It does not edit images.
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
DEFAULT_STEPS = 28
DEFAULT_GUIDANCE = 7.0
"""Guidance scale, as in diffusers."""


class StableDiffusion3(Model):
    """Generates images. `weights` is a folder in the diffusers layout, or `hub:NAME`."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.checkpoint = Checkpoint(weights)
        self.clip, self.clip_2 = ClipTextEncoder(self.checkpoint), ClipTextEncoder(self.checkpoint, "_2")
        self.t5 = T5(self.checkpoint, "_3")
        self.denoiser, self.vae = ImageDenoiser(self.checkpoint), ImageVae(self.checkpoint)

    @walk
    def draw(self, params: DiffusionParams, spans: list[int], image_count: int) -> Iterator[Image]:
        """Generate one image and emit it after each span of denoising steps."""
        clip, clip_2 = (
            encoder.encode_pooled(params.prompts, encoder.state(TenantState)) for encoder in (self.clip, self.clip_2)
        )
        text, pooled = self.denoiser.combine_embeddings(
            *clip, *clip_2, self.t5.encode(params.prompts, self.t5.state(TenantState))
        )
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
        """Resolve the parameters and draw. The default size is the training size."""
        if request.sources or request.mask:
            raise Unsupported(
                "Stable Diffusion 3 does not edit images\n  fix: leave out the source images and the mask"
            )
        vae, transformer = self.checkpoint.config("vae"), self.checkpoint.config("transformer")
        scale = 2 ** (len(vae["block_out_channels"]) - 1)
        side, patch = scale * transformer["sample_size"], transformer["patch_size"]
        max_side = scale * patch * transformer["pos_embed_max_size"]  # size of the position table
        defaults = DefaultParams(side, side, DEFAULT_STEPS, DEFAULT_GUIDANCE, max_side)
        params = resolve_params(request, defaults, scale, patch)
        spans = request.steps_per_image(params.steps)
        await self.draw(params, spans, len(spans))
