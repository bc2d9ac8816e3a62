"""BAGEL vision encoder: the SigLIP ViT of transformers, with BAGEL's position table and connector.

A patch is placed by its row and column in a table that is larger than most images. The connector maps patches to
embeddings of the language model. Outputs are not cached across requests.
"""

from __future__ import annotations

from typing import Any

from mstar import Float, Tensor, op, rows, stacked
from mstar.models.bagel.checkpoint import MIXTURE_FILE, Checkpoint, load_tensors
from mstar.nn.encoder import Encoder

_VIT = "vit_model.vision_model."
_CONNECTOR = "connector."
_POSITION_TABLE = "vit_pos_embed.pos_embed"


class VisionEncoder(Encoder):
    """Encodes images to one embedding per patch."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(self._load_network, cache_bytes=0)
        self._checkpoint = checkpoint

    @op(batch=stacked, rowwise_on_cpu=True)
    def encode(self, pixels: Float[Tensor, "C H W"], tenant: str = "") -> Float[Tensor, "P D"]:
        """Return the embedding of each patch."""
        return self._encode(pixels.unbind(), rows(tenant))

    def _load_network(self) -> Any:
        import torch
        from transformers import SiglipVisionConfig, SiglipVisionModel
        from transformers.models.siglip.modeling_siglip import SiglipMLP

        published = self._checkpoint.tensors(MIXTURE_FILE, _VIT, _CONNECTOR, _POSITION_TABLE)
        settings = self._checkpoint.read_config("vit_config.json")
        layers = settings["num_hidden_layers"] - 1  # the published model drops the last layer
        config = SiglipVisionConfig.from_dict(settings | {"num_hidden_layers": layers, "vision_use_head": False})
        patch, width = settings["patch_size"], published[f"{_CONNECTOR}fc2.weight"].shape[0]
        with torch.device("meta"):
            vit = SiglipVisionModel(config)
            vit.connector = SiglipMLP(config)
            vit.connector.fc1 = torch.nn.Linear(config.hidden_size, width)
            vit.connector.fc2 = torch.nn.Linear(width, width)
            vit.places = torch.nn.Parameter(torch.empty(published[_POSITION_TABLE].shape))
        del vit.embeddings.position_ids  # not used, and without data
        tensors = {name.removeprefix(_VIT): tensor for name, tensor in published.items()}
        tensors["places"] = tensors.pop(_POSITION_TABLE)
        flat = tensors["embeddings.patch_embedding.weight"]
        tensors["embeddings.patch_embedding.weight"] = flat.unflatten(1, (patch, patch, -1)).movedim(-1, 1)
        return load_tensors(vit, tensors)

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        import torch

        vit, dtype = self.network, self.network.places.dtype
        patches = vit.embeddings.patch_embedding(batch.to(dtype))
        height, width = patches.shape[2:]
        side = self._checkpoint.sizes.patches
        rows, columns = (torch.arange(size, device=batch.device) for size in (height, width))
        ids = (rows[:, None] * side + columns).flatten()
        embedded = patches.flatten(2).transpose(1, 2) + vit.embeddings.position_embedding(ids)
        hidden = vit.post_layernorm(vit.encoder(inputs_embeds=embedded).last_hidden_state)
        return (vit.connector(hidden) + vit.places[ids]).float()
