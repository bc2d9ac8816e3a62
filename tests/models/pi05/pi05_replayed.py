"""A pi0.5 that is given what its networks are given, and not what a robot says: what lerobot's networks were given.

It stands by itself, so that processes can load it from a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mstar import Action, Float32, Int64, Tensor, walk
from mstar.models.pi05.pi05 import ACTION_RATE_HZ, Pi05


class Replayed(Pi05):
    """Its requests are the arguments of `replay`: views of cameras that are there, and tokens that are not padded."""

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
