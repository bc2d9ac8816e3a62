"""The ear and the eye of Qwen3-Omni: what the thinker is given of a sound, a picture or a clip.

Both are transformers' encoders as they are. What is seen comes on several levels, of which the thinker is told the
first as embeddings, and the others behind its first layers. Nothing is kept: an op does not know whose its inputs are,
and what one tenant showed must not make another's answer sooner.
"""

from __future__ import annotations

from typing import Any

from mstar import Float, Tensor, op, rows, stacked
from mstar.models.qwen3_omni.checkpoint import Checkpoint
from mstar.nn.encoder import Encoder


class AudioEncoder(Encoder):
    """Hears spectra, by its op `spectrum`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(lambda: checkpoint.network("audio_encoder").thinker.model.audio_tower, cache_bytes=0)

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        import torch

        lengths = torch.full((len(batch),), batch.shape[2])
        heard = self.network(batch.transpose(0, 1).flatten(1), feature_lens=lengths)
        return heard.last_hidden_state.unflatten(0, (len(batch), -1))


class VisionEncoder(Encoder):
    """Sees pictures and clips, as patches."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(lambda: checkpoint.network("vision_encoder").thinker.model.visual, cache_bytes=0)

    @op(batch=stacked)
    def encode(self, patches: Float[Tensor, "F H W K"], tenant: str = "") -> Float[Tensor, "P E"]:
        """What is seen in each place, on all levels one after the other."""
        return self._encode(patches.unbind(), rows(tenant))

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        import torch

        grids = torch.tensor([batch.shape[1:4]] * len(batch))
        seen = self.network(batch.flatten(0, 3).to(self.network.dtype), grid_thw=grids)
        levels = torch.cat([seen.pooler_output, *seen.deepstack_features], -1)
        return levels.unflatten(0, (len(batch), -1))
