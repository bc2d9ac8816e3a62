"""A pi0.5 whose requests are network inputs instead of observations, to replay the inputs of lerobot.

It is a file of its own, so that worker processes can load it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mstar import Action, Float32, Int64, Tensor, walk
from mstar.models.pi05.pi05 import ACTION_RATE_HZ, Pi05


class Replayed(Pi05):
    """Requests are the arguments of `replay`: images of present cameras, and tokens without padding."""

    @walk
    def replay(
        self,
        views: Float32[Tensor, "V 3 H W"],
        tokens: Int64[Tensor, "T"],
        noise: Float32[Tensor, "A D"],
        left: Float32[Tensor, "A D"],
        trust: Float32[Tensor, "A"],
        steps: int,
    ) -> Iterator[Action]:
        yield Action(self.flow(views, tokens, noise, left, trust, steps), rate=ACTION_RATE_HZ)

    async def route(self, request: dict[str, Any]) -> None:
        await self.replay(**request)
