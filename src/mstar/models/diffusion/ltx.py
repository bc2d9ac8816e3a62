"""LTX-Video: text-to-video and image-to-video diffusion.

Components: the text encoder `t5`, the `denoiser` with its scheduler, and `vae`. The walk denoises all frames at once,
decodes them at once, and emits them in parts. Not supported: conditions on frames other than the first, as of
LTXConditionPipeline, the latent upsampler, and guidance_rescale.
"""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Model, Video, loop, walk
from mstar.models.diffusion.checkpoint import Checkpoint
from mstar.models.diffusion.ltx_denoiser import LtxDenoiser
from mstar.models.diffusion.ltx_vae import LtxVae, compression_ratios
from mstar.models.diffusion.params import DefaultParams, DiffusionParams, count_latent_frames, resolve_params
from mstar.models.diffusion.text_encoders import MaskedT5
from mstar.nn.diffusion.flow_head import DenoisingState
from mstar.nn.encoder import TenantState
from mstar.requests import ImageInput, VideoRequest

DEFAULT_WEIGHTS = "hub:Lightricks/LTX-Video"
DEFAULT_PARAMS = DefaultParams(width=704, height=512, steps=50, guidance=3.0, max_side_px=1280)
MAX_FRAMES = 257
"""Maximum frames: the training length."""


class Ltx(Model):
    """Generates videos.

    `weights` is a folder in the diffusers layout or `hub:NAME`; `fps` is the frame rate of the videos, and an input of
    the network. `decode_timestep` and `decode_noise_scale` (default: the same value) are those of diffusers; they
    matter for weights whose decoder is conditioned on a timestep.
    """

    def __init__(
        self,
        weights: str = DEFAULT_WEIGHTS,
        *,
        fps: float = 25.0,
        decode_timestep: float = 0.0,
        decode_noise_scale: float | None = None,
    ) -> None:
        self.checkpoint, self.fps = Checkpoint(weights), fps
        self.t5, self.denoiser = MaskedT5(self.checkpoint), LtxDenoiser(self.checkpoint, fps)
        noise_scale = decode_timestep if decode_noise_scale is None else decode_noise_scale
        self.vae = LtxVae(self.checkpoint, decode_timestep, noise_scale)

    @walk
    def generate_video(self, params: DiffusionParams, source: ImageInput | None) -> Iterator[Video]:
        """Denoise a video, decode it, and emit its frames."""
        text = self.t5.encode(params.prompts, self.t5.state(TenantState))
        known = self.vae.encode_first_frame(params, source)
        schedule_state = self.denoiser.state(DenoisingState)

        s = loop(steps=params.steps, x=self.denoiser.noise(params, known))
        for _ in s:
            s.x = self.denoiser.step(s.x, known, text, params, schedule_state)
        video = self.vae.decode_video(s.x, known, params)
        for step in loop(steps=params.latent_size[0]):
            yield Video(self.vae.take_frames(video, step), fps=self.fps)

    async def route(self, request: VideoRequest) -> None:
        """Resolve the parameters and generate the video."""
        scale, frames_per_latent = compression_ratios(self.checkpoint)
        frames = count_latent_frames(request, self.fps, MAX_FRAMES, frames_per_latent)
        await self.generate_video(resolve_params(request, DEFAULT_PARAMS, scale, 1, frames), request.source)
