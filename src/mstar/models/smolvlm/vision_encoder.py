"""The eye of SmolVLM: what the language model is given of a picture.

transformers cuts a picture into tiles of one size, besides the whole in that size, and its encoder sees each of them.
What it saw is kept by the picture's content, so a picture that was shown before is neither cut nor seen again.
"""

from __future__ import annotations

from typing import Any

from mstar import Float, Tensor, UInt8, View, op
from mstar.models.smolvlm.checkpoint import Checkpoint
from mstar.nn.encoder import Encoder, TenantState


class VisionEncoder(Encoder):
    """The vision encoder and what leads from it to the language model."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(lambda: checkpoint.network("vision_encoder"))
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load the network, and what cuts pictures."""
        super().prepare()
        _ = self._checkpoint.image_processor

    @op
    def encode(self, image: UInt8[Tensor, "H W 3"], owner: View[TenantState]) -> Float[Tensor, "P D"]:
        """The embeddings of a picture, of its tiles one after the other."""
        return self._encode([image], [owner.tenant])[0]

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        cut = self._checkpoint.image_processor(batch.numpy()[0], return_tensors="pt", input_data_format="channels_last")
        return self.network.get_image_features(cut["pixel_values"]).pooler_output[0][None]
