"""The networks that denoise, with their schedulers: one op is one step of as many requests as there are.

Requests share a forward if their latents have one shape, whatever their steps, schedules and guidance are. What a
request is guided towards and what away from are two rows of it, and who is not guided has one.
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
    """The transformer and the scheduler of a model."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(self._load_network, checkpoint.scheduler)
        self._checkpoint = checkpoint

    def _load_network(self) -> Any:
        return self._checkpoint.network("transformer")

    def _noise(self, params: DiffusionParams) -> Tensor:
        """What diffusers begins with, given this seed."""
        import torch

        channels = self._checkpoint.config("transformer")["in_channels"]
        return torch.randn((1, channels, *params.latent_size), generator=torch.Generator().manual_seed(params.seed))[0]

    def _step(
        self,
        x: Tensor,
        params: Sequence[DiffusionParams],
        schedule_states: Sequence[DenoisingState],
        layout: Layout,
        predict: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Latents one step further, by what is predicted of each branch at its time."""
        import torch

        steps, branches = [wish.steps for wish in params], torch.tensor(layout.lengths)
        with torch.inference_mode():
            times = self.timesteps(steps, [way.steps_done for way in schedule_states])
            predicted = predict(*(one.repeat_interleave(branches, 0) for one in (x, times)))
            towards = predicted[[*layout.offsets[:-1]]]
            away = predicted[[end - 1 for end in layout.offsets[1:]]]  # the same, where there is one branch
            scale = torch.tensor([wish.guidance for wish in params]).reshape(-1, *[1] * (x.ndim - 1))
            return self.advance_multistep(x, away + scale * (towards - away), steps, schedule_states)


class ImageDenoiser(Denoiser):
    """That of Stable Diffusion 3, which is told what three encoders say of each token, and two of the whole text."""

    @op
    def noise(self, params: DiffusionParams) -> Float[Tensor, "C H W"]:
        """What a picture begins as."""
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
        """What the encoders say: of tokens the two CLIPs side by side, then T5; of the whole text the two CLIPs."""
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
        """A picture one step less noisy."""

        def predict(seen: Tensor, times: Tensor) -> Tensor:
            return self.network(seen, text, pooled, times).sample

        return self._step(x, rows(params), rows(schedule_state), layout, predict)


class VideoDenoiser(Denoiser):
    """That of Wan. What is known of a film, its first frame or nothing, is never noisy."""

    def _load_network(self) -> Any:
        if self._checkpoint.config("", "model_index.json").get("boundary_ratio") is not None:
            what = "these weights have one transformer for much noise and another for little"
            raise LoadError(f"{what}\n  fix: use weights that have one, such as Wan2.2-TI2V-5B or Wan2.1-T2V")
        return super()._load_network()

    @op
    def noise(self, params: DiffusionParams, known: Float[Tensor, "C K H W"]) -> Float[Tensor, "C F H W"]:
        """What a film begins as."""
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
        """A film one step less noisy."""
        import torch

        frames = known.shape[2]

        def predict(seen: Tensor, times: Tensor) -> Tensor:
            if frames:  # each place has a time of its own, which is over where all is known
                wide = [size // patch for size, patch in zip(x.shape[2:], self.network.config.patch_size, strict=True)]
                times = times.float()[:, None, None, None].repeat(1, *wide)
                times[:, :frames] = 0
                times = times.flatten(1)
            return self.network(seen, times, text).sample

        moved = self._step(x, rows(params), rows(schedule_state), layout, predict)
        return torch.cat([known, moved[:, :, frames:]], 2) if frames else moved
