"""V-JEPA 2: video embeddings per patch, and masked prediction of hidden patches.

Components: `encoder` and `predictor`, both from transformers. The walk encodes a whole clip and, if target patches are
requested, predicts their embeddings. Use `VJepa2Encoder` to serve embeddings without loading the predictor. Embeddings
are neither pooled nor classified.
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
    """Embed a clip. With `target_patches`, also predict their embeddings from the `context_patches`."""

    clip: VideoInput
    context_patches: tuple[int, ...] = ()
    target_patches: tuple[int, ...] = ()


class VJepa2Encoder(Model):
    """Embeds clips. Does not load the predictor."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.encoder = ClipEncoder(Weights(weights))

    @walk
    def embed(self, frames: UInt8[Tensor, "F H W 3"]) -> Iterator[Latents]:
        """Emit the embedding of each patch."""
        yield Latents(self.encoder.encode_clip(frames))

    async def route(self, request: ClipEmbeddingRequest) -> None:
        """Embed the clip. Rejects requests for prediction."""
        if request.target_patches:
            raise Unsupported("this model has no predictor\n  fix: leave out target_patches, or serve VJepa2")
        await self.embed(request.clip.frames)


class VJepa2(VJepa2Encoder):
    """Adds masked prediction. `weights` is a folder, or `hub:NAME`."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        super().__init__(weights)
        self.predictor = MaskedPredictor(Weights(weights))

    @walk
    def predict(
        self, frames: UInt8[Tensor, "F H W 3"], context_patches: Int64[Tensor, "S"], target_patches: Int64[Tensor, "T"]
    ) -> Iterator[Latents]:
        """Emit the embeddings of all patches, then the predicted embeddings of the target patches."""
        embeddings = self.encoder.encode_clip(frames)
        yield Latents(embeddings)
        yield Latents(self.predictor.predict(embeddings, context_patches, target_patches))

    async def route(self, request: ClipEmbeddingRequest) -> None:
        """Embed the clip, and predict if the request has target patches."""
        import numpy as np

        if not request.target_patches:
            await self.embed(request.clip.frames)
        elif not request.context_patches:
            what = f"{len(request.target_patches)} target patches and no context patches"
            raise Unsupported(f"{what}\n  fix: send the context_patches to predict from")
        else:
            masks: list[Any] = [np.array(request.context_patches), np.array(request.target_patches)]
            await self.predict(request.clip.frames, *masks)
