"""V-JEPA 2: what a clip shows, as an embedding for each of its patches; and what it would show where it is hidden.

Both networks are transformers'. Who only wants embeddings never runs the predictor, and where nobody predicts it need
not be loaded. Clips are embedded whole, and neither named nor pooled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mstar import Int64, Latents, Model, Tensor, UInt8, walk
from mstar.asks import Clip
from mstar.errors import Unsupported
from mstar.models.vjepa2.eyes import ClipEye, Filler
from mstar.nn.weights import Weights

PUBLISHED = "hub:facebook/vjepa2-vitl-fpc64-256"


@dataclass(frozen=True, slots=True)
class Watching:
    """Embed a clip. With `hidden`, predict what these patches show by what the `shown` ones do."""

    clip: Clip
    shown: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()


class VJepa2Eye(Model):
    """Embeds clips and predicts nothing: its deployments hold no predictor."""

    def __init__(self, weights: str = PUBLISHED) -> None:
        self.eye = ClipEye(Weights(weights))

    @walk
    def embed(self, frames: UInt8[Tensor, "F H W 3"]) -> Iterator[Latents]:
        """What is seen in each patch."""
        yield Latents(self.eye.clip(frames))

    async def route(self, request: Watching) -> None:
        """Look."""
        if request.hidden:
            raise Unsupported("it predicts nothing\n  fix: ask a VJepa2, which has a predictor")
        await self.embed(request.clip.frames)


class VJepa2(VJepa2Eye):
    """An eye, and what fills in what is hidden. `weights` is a folder, or `hub:` and a name."""

    def __init__(self, weights: str = PUBLISHED) -> None:
        super().__init__(weights)
        self.filler = Filler(Weights(weights))

    @walk
    def predict(
        self, frames: UInt8[Tensor, "F H W 3"], shown: Int64[Tensor, "S"], hidden: Int64[Tensor, "T"]
    ) -> Iterator[Latents]:
        """What is seen in each patch, and then what is predicted of the hidden ones."""
        seen = self.eye.clip(frames)
        yield Latents(seen)
        yield Latents(self.filler.fill(seen, shown, hidden))

    async def route(self, request: Watching) -> None:
        """Look, and predict if that is asked for."""
        import numpy as np

        if not request.hidden:
            await self.embed(request.clip.frames)
        elif not request.shown:
            what = f"{len(request.hidden)} patches are hidden and none is shown"
            raise Unsupported(f"{what}\n  fix: say by which patches they are predicted")
        else:
            masks: list[Any] = [np.array(request.shown), np.array(request.hidden)]
            await self.predict(request.clip.frames, *masks)
