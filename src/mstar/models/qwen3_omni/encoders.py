"""Audio and vision encoders of Qwen3-Omni, both from transformers.

The vision encoder returns several levels (DeepStack): the thinker reads the first as embeddings and adds the others
after its first layers. Outputs are not cached across requests, because a cache hit would reveal one tenant's inputs to
another by its timing.
"""

from __future__ import annotations

from typing import Any

from mstar import Float, Tensor, op, rows, stacked
from mstar.models.qwen3_omni.checkpoint import Checkpoint
from mstar.nn.encoder import Encoder


class AudioEncoder(Encoder):
    """Encodes mel spectrograms with the op `spectrum`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(lambda: checkpoint.network("audio_encoder").thinker.model.audio_tower, cache_bytes=0)

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        import torch

        lengths = torch.full((len(batch),), batch.shape[2])
        hidden = self.network(batch.transpose(0, 1).flatten(1), feature_lens=lengths)
        return hidden.last_hidden_state.unflatten(0, (len(batch), -1))


class VisionEncoder(Encoder):
    """Encodes patches of images and videos."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(lambda: checkpoint.network("vision_encoder").thinker.model.visual, cache_bytes=0)

    @op(batch=stacked)
    def encode(self, patches: Float[Tensor, "F H W K"], tenant: str = "") -> Float[Tensor, "P E"]:
        """Return the embedding of each patch, all levels concatenated."""
        return self._encode(patches.unbind(), rows(tenant))

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        import torch

        grids = torch.tensor([batch.shape[1:4]] * len(batch))
        hidden = self.network(batch.flatten(0, 3).to(self.network.dtype), grid_thw=grids)
        levels = torch.cat([hidden.pooler_output, *hidden.deepstack_features], -1)
        return levels.unflatten(0, (len(batch), -1))
