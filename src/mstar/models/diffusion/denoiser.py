"""Denoising transformers with their schedulers: one op is one denoising step, batched across requests.

Requests with latents of the same shape share a forward pass, whatever their steps, schedules and guidance scales are.
Classifier-free guidance takes two rows of the batch per request; a request without guidance takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mstar import ONE_ROW, Float, Layout, Tensor, op, ragged, rows
from mstar.errors import LoadError
from mstar.models.diffusion.checkpoint import Checkpoint
from mstar.models.diffusion.params import DiffusionParams
from mstar.nn.diffusion.flow_head import DenoisingState, FlowHead


class Denoiser(FlowHead):
    """Transformer and scheduler of a diffusion model."""

    runs_on_device = True
    runs_on_ranks = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(self._load_network, self._load_scheduler)
        self._checkpoint = checkpoint

    def _schedule(self, params: DiffusionParams) -> Any:
        """What the schedule of a request depends on: the number of steps."""
        return params.steps

    def _load_scheduler(self, schedule: Any) -> Any:
        return self._checkpoint.scheduler(schedule)

    def _load_network(self) -> Any:
        network = self._checkpoint.network("transformer")
        if self.rank is not None:
            from mstar.nn.diffusion.sequence_parallel import split_sequence

            split_sequence(network, self.rank)
        return network

    @property
    def _latent_channels(self) -> int:
        return self._checkpoint.config("transformer")["in_channels"]

    def nondeterminism(self) -> str:
        """Why a result can depend on the other requests of a batch."""
        return super().nondeterminism() or "torch computes the matrix products of all images together"

    def _noise(self, params: DiffusionParams) -> Tensor:
        """Draw the same initial noise as diffusers for this seed."""
        import torch

        shape, generator = (1, self._latent_channels, *params.latent_size), torch.Generator()
        noise = torch.randn(shape, generator=generator.manual_seed(params.seed))[0]
        return noise if self.device is None else noise.to(self.device)

    def _step(
        self,
        x: Tensor,
        params: Sequence[DiffusionParams],
        schedule_states: Sequence[DenoisingState],
        layout: Layout,
        predict: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Advance the latents by one step. `predict` runs the network on all guidance branches at their timesteps."""
        import numpy as np
        import torch

        from mstar.nn.staging import to_device

        schedules, offsets = [self._schedule(row) for row in params], np.array(layout.offsets)
        arrays = [np.arange(len(params)).repeat(layout.lengths), offsets[:-1], offsets[1:] - 1]
        scales = np.array([float(row.guidance) for row in params])
        branches, first, last, guidance = to_device([*arrays, scales], x.device)
        with torch.inference_mode():
            times = self.timesteps(schedules, [state.steps_done for state in schedule_states])
            predicted = predict(x[branches], times[branches])
            positive, negative = predicted[first], predicted[last]  # equal without guidance
            scale = guidance.float().reshape(-1, *[1] * (x.ndim - 1))
            return self.advance_multistep(x, negative + scale * (positive - negative), schedules, schedule_states)


class ImageDenoiser(Denoiser):
    """Denoiser of Stable Diffusion 3, conditioned on token embeddings of three encoders and two pooled vectors."""

    @op
    def noise(self, params: DiffusionParams) -> Float[Tensor, "C H W"]:
        """Draw the initial latents of an image."""
        return self._noise(params)

    @op
    def combine_embeddings(
        self,
        clip: Float[Tensor, "B L D"],
        pooled: Float[Tensor, "B P"],
        clip_2: Float[Tensor, "B2 L2 D2"],
        pooled_2: Float[Tensor, "B2 P2"],
        t5: Float[Tensor, "B3 L3 D3"],
    ) -> tuple[Float[Tensor, "B S F"], Float[Tensor, "B R"]]:
        """Concatenate the embeddings: both CLIPs by channel, then T5 by token; the pooled vectors of both CLIPs."""
        import torch
        from torch.nn.functional import pad

        clips = torch.cat([clip, clip_2], -1)
        text = torch.cat([pad(clips, (0, t5.shape[-1] - clips.shape[-1])), t5], 1)
        return text, torch.cat([pooled, pooled_2], -1)

    @op(batch=ragged("B"))
    def step(
        self,
        x: Float[Tensor, "C H W"],
        text: Float[Tensor, "B S F"],
        pooled: Float[Tensor, "B R"],
        params: DiffusionParams,
        schedule_state: DenoisingState,
        layout: Layout = ONE_ROW,
    ) -> Float[Tensor, "C H W"]:
        """Denoise an image by one step."""

        def predict(branches: Tensor, times: Tensor) -> Tensor:
            return self.network(branches, text, pooled, times).sample

        return self._step(x, rows(params), rows(schedule_state), layout, predict)


class VideoDenoiser(Denoiser):
    """Denoiser of Wan. A known first frame stays free of noise."""

    def _load_network(self) -> Any:
        if self._checkpoint.config("", "model_index.json").get("boundary_ratio") is not None:
            what = "these weights have two transformers, for high and for low noise (boundary_ratio is set)"
            raise LoadError(f"{what}\n  fix: use weights with one transformer, such as Wan2.2-TI2V-5B or Wan2.1-T2V")
        return super()._load_network()

    @op
    def noise(self, params: DiffusionParams, known: Float[Tensor, "C K H W"]) -> Float[Tensor, "C F H W"]:
        """Draw the initial latents of a video, after the known frames."""
        import torch

        return torch.cat([known, self._noise(params)[:, known.shape[1] :]], 1)

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

        frames = known.shape[2]

        def predict(branches: Tensor, times: Tensor) -> Tensor:
            if frames:  # one timestep per patch: 0 where the frame is known
                grid = [size // patch for size, patch in zip(x.shape[2:], self.network.config.patch_size, strict=True)]
                times = times.float()[:, None, None, None].repeat(1, *grid)
                times[:, :frames] = 0
                times = times.flatten(1)
            return self.network(branches, times, text).sample

        moved = self._step(x, rows(params), rows(schedule_state), layout, predict)
        return torch.cat([known, moved[:, :, frames:]], 2) if frames else moved
