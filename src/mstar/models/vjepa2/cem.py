"""Planning by the cross-entropy method, as it was published for V-JEPA 2-AC: sample plans, keep the best, sample again.

A plan moves a hand and opens or closes it; it does not turn it. The rounds are a loop of the walk, and what plans lead
to is imagined elsewhere. The same seed gives the same plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mstar import Component, Float32, Tensor, op

MAX_TRANSLATION_M = 0.05
"""So far a hand goes in each direction with one action."""
_MAX_GRIP, _MIN_GRIP = 0.75, 0.25
"""How far it closes with one action at most, and less than which is none."""
_MOMENTUM = 0.15
"""How much of the last round's mean and spread is kept."""


@dataclass(frozen=True, slots=True)
class CemParams:
    """How a plan is searched for."""

    horizon: int
    candidates: int
    rounds: int
    elites: int
    seed: int = 0


class CrossEntropy(Component):
    """Has no weights. A mean and a spread are [actions, 4]: three directions, and the hand."""

    @op
    def begin(self, params: CemParams) -> tuple[Float32[Tensor, "H 4"], Float32[Tensor, "H 4"]]:
        """When nothing is known."""
        import torch

        spread = torch.tensor([MAX_TRANSLATION_M, MAX_TRANSLATION_M, MAX_TRANSLATION_M, 1.0])
        return torch.zeros(params.horizon, 4), spread.repeat(params.horizon, 1)

    def noise(self, step: int, params: CemParams) -> Any:
        """Normal numbers for a round, [actions, plans, 4]."""
        import torch

        drawn = torch.Generator().manual_seed((params.seed * 1_000_003 + step) % 2**63)
        return torch.randn((params.horizon, params.candidates, 4), generator=drawn)

    @op
    def sample(
        self, mean: Float32[Tensor, "H 4"], spread: Float32[Tensor, "H 4"], step: int, params: CemParams
    ) -> Float32[Tensor, "H K 7"]:
        """Plans around a mean."""
        plans = self.noise(step, params) * spread[:, None] + mean[:, None]
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
        """The mean and the spread of the best plans, and a little of those before."""
        best = plans[:, costs.topk(params.elites, largest=False).indices][..., [0, 1, 2, 6]]
        return (1 - _MOMENTUM) * best.mean(1) + _MOMENTUM * mean, (1 - _MOMENTUM) * best.std(1) + _MOMENTUM * spread

    @op
    def best_actions(self, mean: Float32[Tensor, "H 4"]) -> Float32[Tensor, "H 7"]:
        """The actions of a mean."""
        return _pad_rotation(mean[:, :3], mean[:, 3:] * (mean[:, 3:].abs() >= _MIN_GRIP))


def _pad_rotation(place: Tensor, grip: Tensor) -> Any:
    """Actions of seven numbers, of which those that turn the hand are zero."""
    import torch

    return torch.cat([place, torch.zeros_like(place), grip], -1)
