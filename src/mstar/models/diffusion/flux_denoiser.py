"""Denoiser of FLUX: its transformer reads patches of 2 x 2 latents, and the guidance scale as an embedding.

So guidance needs no second branch.
"""

from __future__ import annotations

from mstar import ONE_ROW, Float, Layout, Tensor, op, ragged, rows
from mstar.models.diffusion.params import DiffusionParams
from mstar.models.diffusion.shifted_denoiser import ShiftedDenoiser
from mstar.nn.diffusion.flow_head import DenoisingState

PATCH = 2
"""Latents per patch, in each direction."""


class FluxDenoiser(ShiftedDenoiser):
    """Denoiser conditioned on token embeddings of T5 and the pooled vector of CLIP."""

    LATENTS_PER_TOKEN = PATCH**2

    @property
    def _latent_channels(self) -> int:
        return self._checkpoint.config("transformer")["in_channels"] // PATCH**2

    @op
    def noise(self, params: DiffusionParams) -> Float[Tensor, "C H W"]:
        """Draw the initial latents of an image."""
        return self._noise(params)

    @op(batch=ragged("B"))
    def step(
        self,
        x: Float[Tensor, "C H W"],
        text: Float[Tensor, "B S F"],
        pooled: Float[Tensor, "Q R"],
        params: DiffusionParams,
        schedule_state: DenoisingState,
        layout: Layout = ONE_ROW,
    ) -> Float[Tensor, "C H W"]:
        """Denoise an image by one step."""
        import numpy as np
        from torch.nn.functional import pixel_shuffle, pixel_unshuffle

        from mstar.nn.staging import to_device

        height, width = (size // PATCH for size in x.shape[2:])
        grid = np.zeros((height, width, 3))
        grid[..., 1], grid[..., 2] = np.arange(height)[:, None], np.arange(width)
        scales = np.array([float(row.guidance) for row in rows(params)])
        positions, guidance = (part.float() for part in to_device([grid.reshape(-1, 3), scales], x.device))

        def predict(latents: Tensor, times: Tensor) -> Tensor:
            velocity = self.network(
                pixel_unshuffle(latents, PATCH).flatten(2).mT,
                encoder_hidden_states=text,
                pooled_projections=pooled.flatten(0, 1),
                timestep=times / 1000,  # the network multiplies it again
                img_ids=positions,
                txt_ids=positions.new_zeros(text.shape[1], 3),
                guidance=guidance if self.network.config.guidance_embeds else None,
            ).sample
            return pixel_shuffle(velocity.mT.unflatten(2, (height, width)), PATCH)

        return self._step(x, rows(params), rows(schedule_state), layout, predict)
