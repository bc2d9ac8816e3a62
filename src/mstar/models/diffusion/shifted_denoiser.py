"""Denoiser whose schedule is shifted by the number of tokens, as FLUX and LTX-Video were trained.

So the schedule depends on the size of an image or video, besides the number of steps.
"""

from __future__ import annotations

import math
from typing import Any

from mstar.models.diffusion.denoiser import Denoiser
from mstar.models.diffusion.params import DiffusionParams


class ShiftedDenoiser(Denoiser):
    """Denoiser with dynamic shifting, if the scheduler's config has it."""

    LATENTS_PER_TOKEN: int
    """Latents that are one token of the network."""

    def _schedule(self, params: DiffusionParams) -> Any:
        """The number of steps and of tokens."""
        return params.steps, math.prod(params.latent_size) // self.LATENTS_PER_TOKEN

    def _load_scheduler(self, schedule: Any) -> Any:
        import numpy as np

        (steps, tokens), config = schedule, self._checkpoint.config("scheduler", "scheduler_config.json")
        low, high = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
        low_shift, high_shift = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
        shift = low_shift + (tokens - low) * (high_shift - low_shift) / (high - low)
        return self._checkpoint.scheduler(steps, sigmas=np.linspace(1.0, 1 / steps, steps), mu=shift)
