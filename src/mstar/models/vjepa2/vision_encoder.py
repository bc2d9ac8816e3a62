"""What V-JEPA 2 and V-JEPA 2-AC see pictures with, and what fills in what is hidden in a clip.

Pictures are uint8, [height, width, 3] each. They are resized until the shorter side fits, and their middle is taken.
Nothing is kept: an op does not know whose its inputs are.
"""

from __future__ import annotations

import functools
from typing import Any

from mstar import Component, Float32, Int64, Tensor, UInt8, op, stacked
from mstar.models.vjepa2.checkpoint import Checkpoint
from mstar.nn.encoder import Encoder
from mstar.nn.weights.sources import Weights

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the pictures that the encoder was trained with."""


class FrameEncoder(Encoder):
    """Sees one frame as the predictor of V-JEPA 2-AC knows frames."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(lambda: checkpoint.network("encoder"), cache_bytes=0)

    @op(batch=stacked)
    def encode_frame(self, image: UInt8[Tensor, "H W 3"]) -> Float32[Tensor, "P D"]:
        """What each patch shows."""
        side = self.network.sizes.image_size
        return self._encode(self.preprocess(image, side, side).unbind(), [""] * len(image))

    def preprocess(self, pictures: Any, short: int, side: int) -> Tensor:
        """[pictures, height, width, 3] as the network takes them, [pictures, 3, side, side]."""
        return preprocess_images(pictures, short, side)

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        return self.network.encode_frames(batch)


class ClipEncoder(Encoder):
    """transformers' encoder, as it is."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(lambda: weights.network(parts={"encoder": "encoder."}), cache_bytes=0)

    @op(batch=stacked)
    def encode_clip(self, frames: UInt8[Tensor, "F H W 3"]) -> Float32[Tensor, "P D"]:
        """What each patch shows, of two frames each."""
        side = self.network.config.crop_size
        count, length = frames.shape[:2]
        pixels = preprocess_images(frames.reshape(-1, *frames.shape[2:]), int(side * 256 / 224), side)
        return self._encode(pixels.unflatten(0, (count, length)).unbind(), [""] * count)

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        return self.network.encoder(batch).last_hidden_state.float()


class MaskedPredictor(Component):
    """transformers' masked predictor, as it is."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    @functools.cached_property
    def network(self) -> Any:
        """The predictor alone."""
        made = self._weights.network(parts={"predictor": "predictor."})
        return made.eval().requires_grad_(requires_grad=False)

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @op(batch=stacked)
    def predict(
        self,
        embeddings: Float32[Tensor, "P D"],
        context_patches: Int64[Tensor, "S"],
        target_patches: Int64[Tensor, "T"],
    ) -> Float32[Tensor, "T D"]:
        """What hidden patches show, by what the shown ones do."""
        import torch

        from mstar.models.vjepa2.network import to_tensor

        masks = [[to_tensor(one)] for one in (context_patches, target_patches)]
        with torch.inference_mode():
            return self.network.predictor(embeddings.to(self.network.dtype), *masks).last_hidden_state.float()


def preprocess_images(pictures: Any, short: int, side: int) -> Tensor:
    """[pictures, height, width, 3] as networks take them: their middle, [pictures, 3, side, side]."""
    import torch
    from torch.nn.functional import interpolate

    from mstar.models.vjepa2.network import to_tensor

    pixels = to_tensor(pictures).movedim(-1, 1).float()
    height, width = pixels.shape[2:]
    if min(height, width) != short:
        scaled = [round(one * short / min(height, width)) for one in (height, width)]
        pixels = interpolate(pixels, scaled, mode="bilinear", antialias=True).round().clamp(0, 255)
    top, left = ((one - side) // 2 for one in pixels.shape[2:])
    middle = pixels[:, :, top : top + side, left : left + side] / 255
    mean, std = (torch.tensor(one)[:, None, None] for one in (_MEAN, _STD))
    return (middle - mean) / std
