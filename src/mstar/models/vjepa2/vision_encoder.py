"""Vision encoders of V-JEPA 2 and V-JEPA 2-AC, and the masked predictor of V-JEPA 2.

Images are uint8, [height, width, 3] each. They are resized by the shorter side and center-cropped. Outputs are not
cached across requests.
"""

from __future__ import annotations

import functools
from typing import Any

from mstar import Component, Float32, Int64, Tensor, UInt8, op, stacked
from mstar.models.vjepa2.checkpoint import Checkpoint
from mstar.nn.encoder import Encoder
from mstar.nn.weights.sources import Weights

_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)
"""Channel statistics of the training images."""


class FrameEncoder(Encoder):
    """Encodes single frames for the predictor of V-JEPA 2-AC."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(lambda: checkpoint.network("encoder"), cache_bytes=0)

    @op(batch=stacked, rowwise_on_cpu=True)
    def encode_frame(self, image: UInt8[Tensor, "H W 3"]) -> Float32[Tensor, "P D"]:
        """Return the embedding of each patch."""
        side = self.network.sizes.image_size
        return self._encode(self.preprocess(image, side, side).unbind(), [""] * len(image))

    def preprocess(self, images: Any, shorter_side: int, side: int) -> Tensor:
        """Convert [images, height, width, 3] to [images, 3, side, side]."""
        return preprocess_images(images, shorter_side, side, self.device)

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        return self.network.encode_frames(batch)


class ClipEncoder(Encoder):
    """Clip encoder of transformers."""

    runs_on_device = True

    def __init__(self, weights: Weights) -> None:
        super().__init__(lambda: weights.network(parts={"encoder": "encoder."}), cache_bytes=0)

    @op(batch=stacked, rowwise_on_cpu=True)
    def encode_clip(self, frames: UInt8[Tensor, "F H W 3"]) -> Float32[Tensor, "P D"]:
        """Return the embedding of each patch, which spans two frames."""
        side = self.network.config.crop_size
        count, length = frames.shape[:2]
        pixels = preprocess_images(frames.reshape(-1, *frames.shape[2:]), int(side * 256 / 224), side, self.device)
        return self._encode(pixels.unflatten(0, (count, length)).unbind(), [""] * count)

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        return self.network.encoder(batch).last_hidden_state.float()


class MaskedPredictor(Component):
    """Masked predictor of transformers."""

    runs_on_device = True

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    @functools.cached_property
    def network(self) -> Any:
        """The predictor, loaded on first use on the device of the component."""
        return self.on_device(self._weights.network(parts={"predictor": "predictor."}))

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @op(batch=stacked, rowwise_on_cpu=True)
    def predict(
        self,
        embeddings: Float32[Tensor, "P D"],
        context_patches: Int64[Tensor, "S"],
        target_patches: Int64[Tensor, "T"],
    ) -> Float32[Tensor, "T D"]:
        """Predict the embeddings of target patches from context patches."""
        import torch

        from mstar.models.vjepa2.network import to_tensor

        masks = [[to_tensor(patches, self.device)] for patches in (context_patches, target_patches)]
        with torch.inference_mode():
            return self.network.predictor(embeddings.to(self.network.dtype), *masks).last_hidden_state.float()


def preprocess_images(images: Any, shorter_side: int, side: int, device: Any = None) -> Tensor:
    """Resize, center-crop and normalize [images, height, width, 3] to [images, 3, side, side] on a device."""
    from torch.nn.functional import interpolate

    from mstar.models.vjepa2.network import to_tensor

    pixels = to_tensor(images, device).movedim(-1, 1).float()
    height, width = pixels.shape[2:]
    if min(height, width) != shorter_side:
        scaled = [round(length * shorter_side / min(height, width)) for length in (height, width)]
        pixels = interpolate(pixels, scaled, mode="bilinear", antialias=True).round().clamp(0, 255)
    top, left = ((length - side) // 2 for length in pixels.shape[2:])
    cropped = pixels[:, :, top : top + side, left : left + side] / 255
    mean, std = to_tensor((_MEAN, _STD), device)[..., None, None]
    return (cropped - mean) / std
