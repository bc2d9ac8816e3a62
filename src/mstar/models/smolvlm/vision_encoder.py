"""Vision encoder of SmolVLM: SigLIP and its connector, with a per-tenant cache by image content.

transformers cuts an image into tiles of one size, plus the whole image at that size, and encodes each. A cached image
is neither cut nor encoded again.
"""

from __future__ import annotations

from typing import Any

from mstar import Float, Tensor, UInt8, View, op
from mstar.models.smolvlm.checkpoint import Checkpoint
from mstar.nn.encoder import Encoder, TenantState


class VisionEncoder(Encoder):
    """Vision encoder with the connector to the language model."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(lambda: checkpoint.network("vision_encoder"))
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load the network and the image processor."""
        super().prepare()
        _ = self._checkpoint.image_processor

    @op
    def encode(self, image: UInt8[Tensor, "H W 3"], owner: View[TenantState]) -> Float[Tensor, "P D"]:
        """Return the embeddings of an image, tile after tile."""
        return self._encode([image], [owner.tenant])[0]

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        tiles = self._checkpoint.image_processor(
            batch.cpu().numpy()[0], return_tensors="pt", input_data_format="channels_last"
        )
        return self.network.get_image_features(tiles["pixel_values"].to(self.network.device)).pooler_output[0][None]
