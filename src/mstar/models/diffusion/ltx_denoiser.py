"""Denoiser of LTX-Video: its transformer reads one token per latent, and positions in seconds and pixels."""

from __future__ import annotations

from mstar import ONE_ROW, Float, Layout, Tensor, op, ragged, rows
from mstar.models.diffusion.checkpoint import Checkpoint
from mstar.models.diffusion.ltx_vae import compression_ratios, draw_noise
from mstar.models.diffusion.params import DiffusionParams
from mstar.models.diffusion.shifted_denoiser import ShiftedDenoiser
from mstar.nn.diffusion.flow_head import DenoisingState


class LtxDenoiser(ShiftedDenoiser):
    """Denoiser of videos at a frame rate. A known first frame stays free of noise."""

    LATENTS_PER_TOKEN = 1

    def __init__(self, checkpoint: Checkpoint, fps: float) -> None:
        super().__init__(checkpoint)
        self._fps = fps

    @op
    def noise(self, params: DiffusionParams, known: Float[Tensor, "C K H W"]) -> Float[Tensor, "C F H W"]:
        """Draw the initial latents of a video, after the known frames."""
        import torch

        count = known.shape[1]
        noise, _ = draw_noise(params, self._latent_channels, count)
        return torch.cat([known, noise[:, count:].to(known.device)], 1)

    @op(batch=ragged("B"))
    def step(
        self,
        x: Float[Tensor, "C F H W"],
        known: Float[Tensor, "C K H W"],
        text: Float[Tensor, "B L D"],
        params: DiffusionParams,
        schedule_state: DenoisingState,
        layout: Layout = ONE_ROW,
    ) -> Float[Tensor, "C F H W"]:
        """Denoise a video by one step."""
        import torch

        size, known_frames = x.shape[2:], known.shape[2]
        pixels, frames = compression_ratios(self._checkpoint)

        def predict(branches: Tensor, times: Tensor) -> Tensor:
            if known_frames:  # one timestep per token: 0 where the frame is known
                times = times[:, None, None].repeat(1, size[0], size[1] * size[2])
                times[:, :known_frames] = 0
                times = times.flatten(1)
            velocity = self.network(
                branches.flatten(2).mT,
                encoder_hidden_states=text,
                timestep=times,
                encoder_attention_mask=text.any(-1),  # zeros are padding
                num_frames=size[0],
                height=size[1],
                width=size[2],
                rope_interpolation_scale=(frames / self._fps, pixels, pixels),
            ).sample
            return velocity.mT.unflatten(2, size)

        moved = self._step(x, rows(params), rows(schedule_state), layout, predict)
        return torch.cat([known, moved[:, :, known_frames:]], 2) if known_frames else moved
