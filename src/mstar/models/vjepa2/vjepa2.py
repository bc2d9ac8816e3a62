"""V-JEPA 2: what a clip shows, as an embedding for each of its patches; and what it would show where it is hidden.

Both networks are transformers'. Who only wants embeddings never runs the predictor, and where nobody predicts it need
not be loaded. Clips are embedded whole, and neither named nor pooled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mstar import Int64, Latents, Model, Tensor, UInt8, walk
from mstar.errors import Unsupported
from mstar.models.vjepa2.vision_encoder import ClipEncoder, MaskedPredictor
from mstar.nn.weights.sources import Weights
from mstar.requests import VideoInput

DEFAULT_WEIGHTS = "hub:facebook/vjepa2-vitl-fpc64-256"


@dataclass(frozen=True, slots=True)
class ClipEmbeddingRequest:
    """Embed a clip. With `hidden`, predict what these patches show by what the `shown` ones do."""

    clip: VideoInput
    context_patches: tuple[int, ...] = ()
    target_patches: tuple[int, ...] = ()


class VJepa2Encoder(Model):
    """Embeds clips and predicts nothing: its deployments hold no predictor."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.encoder = ClipEncoder(Weights(weights))

    @walk
    def embed(self, frames: UInt8[Tensor, "F H W 3"]) -> Iterator[Latents]:
        """What is seen in each patch."""
        yield Latents(self.encoder.encode_clip(frames))

    async def route(self, request: ClipEmbeddingRequest) -> None:
        """Look."""
        if request.target_patches:
            raise Unsupported("it predicts nothing\n  fix: ask a VJepa2, which has a predictor")
        await self.embed(request.clip.frames)


class VJepa2(VJepa2Encoder):
    """An eye, and what fills in what is hidden. `weights` is a folder, or `hub:` and a name."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        super().__init__(weights)
        self.predictor = MaskedPredictor(Weights(weights))

    @walk
    def predict(
        self, frames: UInt8[Tensor, "F H W 3"], context_patches: Int64[Tensor, "S"], target_patches: Int64[Tensor, "T"]
    ) -> Iterator[Latents]:
        """What is seen in each patch, and then what is predicted of the hidden ones."""
        seen = self.encoder.encode_clip(frames)
        yield Latents(seen)
        yield Latents(self.predictor.predict(seen, context_patches, target_patches))

    async def route(self, request: ClipEmbeddingRequest) -> None:
        """Look, and predict if that is asked for."""
        import numpy as np

        if not request.target_patches:
            await self.embed(request.clip.frames)
        elif not request.context_patches:
            what = f"{len(request.target_patches)} patches are hidden and none is shown"
            raise Unsupported(f"{what}\n  fix: say by which patches they are predicted")
        else:
            masks: list[Any] = [np.array(request.context_patches), np.array(request.target_patches)]
            await self.predict(request.clip.frames, *masks)
