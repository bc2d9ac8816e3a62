"""Audio encoder of Voxtral: that of Whisper, and the projector to the language model, with a cache per tenant.

It reads windows of fixed length. A cached window is not encoded again.
"""

from __future__ import annotations

from typing import Any

from mstar import Float, Float32, Tensor, View, op, rows, stacked
from mstar.models.voxtral.checkpoint import Checkpoint
from mstar.nn.encoder import Encoder, TenantState


class AudioEncoder(Encoder):
    """Encoder with the projector, which groups neighboring positions."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(lambda: checkpoint.network("audio_encoder"))

    @op(batch=stacked, rowwise_on_cpu=True)
    def encode(self, features: Float32[Tensor, "M F"], owner: View[TenantState]) -> Float[Tensor, "P D"]:
        """Return the embeddings of a window."""
        return self._encode(features.unbind(), [state.tenant for state in rows(owner)])

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        return self.network.get_audio_features(batch).pooler_output.unflatten(0, (len(batch), -1))
