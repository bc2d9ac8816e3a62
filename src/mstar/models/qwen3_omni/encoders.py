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

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(lambda: checkpoint.network("audio_encoder").thinker.model.audio_tower, cache_bytes=0)

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        import torch

        lengths, features = torch.full((len(batch),), batch.shape[2]), batch.transpose(0, 1).flatten(1)
        hidden = self.network(features, feature_lens=lengths, **self._indices(features, lengths))
        return hidden.last_hidden_state.unflatten(0, (len(batch), -1))

    def _indices(self, features: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """What a network on a device computes from lengths on the host. Every layer would read them on the device."""
        if features.device.type == "cpu":
            return {}
        from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import chunk_and_pad_features, get_valid_indices

        window = self.network.n_window
        padded, chunks = chunk_and_pad_features(features, lengths, window)
        indices = get_valid_indices(chunks, window).to(features.device)
        return {"padded_feature": padded, "chunk_lengths": chunks, "valid_indices": indices}


class VisionEncoder(Encoder):
    """Encodes patches of images and videos."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(lambda: checkpoint.network("vision_encoder").thinker.model.visual, cache_bytes=0)

    @op(batch=stacked, rowwise_on_cpu=True)
    def encode(self, patches: Float[Tensor, "F H W K"], tenant: str = "") -> Float[Tensor, "P E"]:
        """Return the embedding of each patch, all levels concatenated."""
        return self._encode(patches.unbind(), rows(tenant))

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        import torch

        grids, patches = torch.tensor([batch.shape[1:4]] * len(batch)), batch.flatten(0, 3).to(self.network.dtype)
        hidden = self.network(patches, grid_thw=grids, **self._indices(grids, batch.device))
        levels = torch.cat([hidden.pooler_output, *hidden.deepstack_features], -1)
        return levels.unflatten(0, (len(batch), -1))

    def _indices(self, grids: Tensor, device: Any) -> dict[str, Tensor]:
        """What a network on a device computes from grids on the host. Every layer would read them on the device."""
        if device.type == "cpu":
            return {}
        from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

        network = self.network
        indices, weights = get_vision_interpolation_indices_and_weights(
            grids,
            num_grid_per_side=network.num_grid_per_side,
            mode=network.interpolation_mode,
            align_corners=network.interpolation_align_corners,
            spatial_merge_size=network.spatial_merge_size,
        )
        known = {"interp_indices": indices, "interp_weights": weights}
        known["position_ids"] = get_vision_position_ids(grids, network.spatial_merge_size)
        return {name: tensor.to(device) for name, tensor in known.items()}
