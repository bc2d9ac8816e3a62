"""Cross-entropy method (CEM) planner, as published for V-JEPA 2-AC: sample plans, keep the elites, refit, repeat.

A plan translates the hand and moves the gripper; it does not rotate. The rounds are a loop of the walk, and the
predictor rolls out the plans. The same seed gives the same plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mstar import Component, Float32, Tensor, op
from mstar.walk.values import to_device

MAX_TRANSLATION_M = 0.05
"""Maximum translation per action and axis, in meters."""
_MAX_GRIP = 0.75
"""Maximum gripper motion per action."""
_MIN_GRIP = 0.25
"""Gripper motion below which an action does not move it."""
_MOMENTUM = 0.15
"""Share of the previous mean and standard deviation that is kept."""


@dataclass(frozen=True, slots=True)
class CemParams:
    """Parameters of the search."""

    horizon: int
    candidates: int
    rounds: int
    elites: int
    seed: int = 0


class CrossEntropy(Component):
    """Has no weights. Mean and standard deviation are [actions, 4]: three axes and the gripper."""

    runs_on_device = True

    @op
    def begin(self, params: CemParams) -> tuple[Float32[Tensor, "H 4"], Float32[Tensor, "H 4"]]:
        """Return the initial mean and standard deviation."""
        import torch

        std = torch.tensor([MAX_TRANSLATION_M, MAX_TRANSLATION_M, MAX_TRANSLATION_M, 1.0], device=self.device)
        return torch.zeros(params.horizon, 4, device=self.device), std.repeat(params.horizon, 1)

    def noise(self, step: int, params: CemParams) -> Any:
        """Draw the normal values of a round, [actions, plans, 4]."""
        import torch

        generator = torch.Generator().manual_seed((params.seed * 1_000_003 + step) % 2**63)
        return torch.randn((params.horizon, params.candidates, 4), generator=generator)

    @op
    def sample(
        self, mean: Float32[Tensor, "H 4"], spread: Float32[Tensor, "H 4"], step: int, params: CemParams
    ) -> Float32[Tensor, "H K 7"]:
        """Sample plans around a mean."""
        noise = self.noise(step, params)
        plans = (noise if self.device is None else to_device(noise, self.device)) * spread[:, None] + mean[:, None]
        return _pad_rotation(
            plans[..., :3].clamp(-MAX_TRANSLATION_M, MAX_TRANSLATION_M), plans[..., 3:].clamp(-_MAX_GRIP, _MAX_GRIP)
        )

    @op
    def refit(
        self,
        plans: Float32[Tensor, "H K 7"],
        costs: Float32[Tensor, "N"],
        mean: Float32[Tensor, "H 4"],
        spread: Float32[Tensor, "H 4"],
        params: CemParams,
    ) -> tuple[Float32[Tensor, "H 4"], Float32[Tensor, "H 4"]]:
        """Refit mean and standard deviation to the elite plans, with momentum."""
        import torch

        best = plans[:, costs.topk(params.elites, largest=False).indices]
        elites = torch.cat([best[..., :3], best[..., 6:]], -1)
        return (1 - _MOMENTUM) * elites.mean(1) + _MOMENTUM * mean, (1 - _MOMENTUM) * elites.std(1) + _MOMENTUM * spread

    @op
    def best_actions(self, mean: Float32[Tensor, "H 4"]) -> Float32[Tensor, "H 7"]:
        """Return the actions of the mean plan."""
        return _pad_rotation(mean[:, :3], mean[:, 3:] * (mean[:, 3:].abs() >= _MIN_GRIP))


def _pad_rotation(translation: Tensor, grip: Tensor) -> Any:
    """Return actions of seven values with zero rotation."""
    import torch

    return torch.cat([translation, torch.zeros_like(translation), grip], -1)
