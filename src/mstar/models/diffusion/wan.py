"""Wan: text-to-video and image-to-video diffusion.

Components: the text encoder `umt5`, the `denoiser` with its scheduler, and `vae`. The walk denoises all frames at once,
then decodes and emits them one latent frame at a time. Checkpoints with two transformers (Wan2.2-A14B) are rejected.
"""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Model, Video, loop, walk
from mstar.errors import Unsupported
from mstar.models.diffusion.checkpoint import Checkpoint
from mstar.models.diffusion.denoiser import VideoDenoiser
from mstar.models.diffusion.params import DefaultParams, DiffusionParams, count_latent_frames, resolve_params
from mstar.models.diffusion.text_encoders import Umt5
from mstar.models.diffusion.vae import DecoderCache, VideoVae, latent_scales
from mstar.nn.diffusion.flow_head import DenoisingState
from mstar.nn.encoder import TenantState
from mstar.requests import ImageInput, VideoRequest

DEFAULT_WEIGHTS = "hub:Wan-AI/Wan2.2-TI2V-5B-Diffusers"
DEFAULT_PARAMS = DefaultParams(width=1280, height=704, steps=50, guidance=5.0, max_side_px=1280)
MAX_FRAMES = 121
"""Maximum frames: the training length. Much longer videos would not fit in memory either."""


class Wan(Model):
    """Generates videos.

    `weights` is a folder in the diffusers layout or `hub:NAME`; `fps` is the training frame rate.
    """

    def __init__(self, weights: str = DEFAULT_WEIGHTS, *, fps: float = 24.0) -> None:
        self.checkpoint, self.fps = Checkpoint(weights), fps
        self.umt5, self.denoiser = Umt5(self.checkpoint), VideoDenoiser(self.checkpoint)
        self.vae = VideoVae(self.checkpoint)

    @walk
    def generate_video(self, params: DiffusionParams, source: ImageInput | None) -> Iterator[Video]:
        """Denoise a video, and emit its frames as they are decoded."""
        text = self.umt5.encode(params.prompts, self.umt5.state(TenantState))
        known = self.vae.encode_first_frame(params.latent_size, source)
        schedule_state, decoder_cache = self.denoiser.state(DenoisingState), self.vae.state(DecoderCache)

        s = loop(steps=params.steps, x=self.denoiser.noise(params, known))
        for _ in s:
            s.x = self.denoiser.step(s.x, known, text, params, schedule_state)
        for step in loop(steps=params.latent_size[0]):
            yield Video(self.vae.decode_frame(s.x, step, decoder_cache), fps=self.fps)

    async def route(self, request: VideoRequest) -> None:
        """Check the request and generate the video."""
        if request.source is not None and not self.checkpoint.config("", "model_index.json").get("expand_timesteps"):
            what = "these weights support text-to-video only, and the request has a source image"
            raise Unsupported(f"{what}\n  fix: leave out the image, or serve Wan2.2-TI2V-5B")
        scale, frames_per_latent = latent_scales(self.checkpoint)
        frames = count_latent_frames(request, self.fps, MAX_FRAMES, frames_per_latent)
        patch = self.checkpoint.config("transformer")["patch_size"][-1]
        await self.generate_video(resolve_params(request, DEFAULT_PARAMS, scale, patch, frames), request.source)
