"""Wan: a text, and perhaps a picture to begin with, becomes a film, out of noise, step by step.

One encoder reads the prompt, a transformer takes noise away from all frames at once, and a decoder makes pixels of one
frame of latents after the other. Weights whose transformers take turns (Wan2.2-A14B) are refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Model, Video, loop, walk
from mstar.errors import Unsupported
from mstar.models.diffusion.checkpoint import Checkpoint
from mstar.models.diffusion.denoiser import VideoDenoiser
from mstar.models.diffusion.params import DefaultParams, DiffusionParams, resolve_params
from mstar.models.diffusion.text_encoders import Umt5
from mstar.models.diffusion.vae import DecoderCache, VideoVae, latent_scales
from mstar.nn.diffusion.flow_head import DenoisingState
from mstar.nn.encoder import TenantState
from mstar.requests import ImageInput, VideoRequest

DEFAULT_WEIGHTS = "hub:Wan-AI/Wan2.2-TI2V-5B-Diffusers"
DEFAULT_PARAMS = DefaultParams(width=1280, height=704, steps=50, guidance=5.0, max_side_px=1280)
MAX_FRAMES = 121
"""So many frames it was taught at most; many more would not fit in memory either."""


class Wan(Model):
    """Films. `weights` is a folder in the layout of diffusers, or `hub:` and a name; `fps` is what they were taught."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS, *, fps: float = 24.0) -> None:
        self.checkpoint, self.fps = Checkpoint(weights), fps
        self.umt5, self.denoiser = Umt5(self.checkpoint), VideoDenoiser(self.checkpoint)
        self.vae = VideoVae(self.checkpoint)

    @walk
    def generate_video(self, params: DiffusionParams, source: ImageInput | None) -> Iterator[Video]:
        """Film, and show frames as they are decoded."""
        text = self.umt5.encode(params.prompts, self.umt5.state(TenantState))
        known = self.vae.encode_first_frame(params.latent_size, source)
        way, seen = self.denoiser.state(DenoisingState), self.vae.state(DecoderCache)

        s = loop(steps=params.steps, x=self.denoiser.noise(params, known))
        for _ in s:
            s.x = self.denoiser.step(s.x, known, text, params, way)
        for step in loop(steps=params.latent_size[0]):
            yield Video(self.vae.decode_frame(s.x, step, seen), fps=self.fps)

    async def route(self, request: VideoRequest) -> None:
        """Film."""
        if request.source is not None and not self.checkpoint.config("", "model_index.json").get("expand_timesteps"):
            what = "these weights begin with no picture"
            raise Unsupported(f"{what}\n  fix: leave it out, or serve Wan2.2-TI2V-5B")
        scale, rate = latent_scales(self.checkpoint)
        if (count := int(request.seconds * self.fps)) > MAX_FRAMES:
            what = f"it films {MAX_FRAMES / self.fps:.1f} seconds at most, and not {request.seconds:g}"
            raise Unsupported(f"{what}\n  fix: ask for less")
        frames = count // rate + 1  # the first one stands for itself
        patch = self.checkpoint.config("transformer")["patch_size"][-1]
        await self.generate_video(resolve_params(request, DEFAULT_PARAMS, scale, patch, frames), request.source)
