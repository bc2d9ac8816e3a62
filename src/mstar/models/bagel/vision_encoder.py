"""The eye of BAGEL: what the language model is given of a picture that is shown to it.

The layers are those of transformers' SigLIP. Written here is what the published code does before and behind them: a
patch stands in its row and column of a table that is larger than most pictures, and a connector makes embeddings of
what is seen. Nothing is kept: an op does not know whose its inputs are.
"""

from __future__ import annotations

from typing import Any

from mstar import Float, Tensor, op, rows, stacked
from mstar.models.bagel.checkpoint import MIXTURE_FILE, Checkpoint, load_tensors
from mstar.nn.encoder import Encoder

_VIT, _CONNECTOR, _POSITION_TABLE = "vit_model.vision_model.", "connector.", "vit_pos_embed.pos_embed"


class VisionEncoder(Encoder):
    """Sees pictures, by its op `see`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(self._load_network, cache_bytes=0)
        self._checkpoint = checkpoint

    @op(batch=stacked)
    def encode(self, pixels: Float[Tensor, "C H W"], tenant: str = "") -> Float[Tensor, "P D"]:
        """An embedding for each patch of a picture."""
        return self._encode(pixels.unbind(), rows(tenant))

    def _load_network(self) -> Any:
        import torch
        from transformers import SiglipVisionConfig, SiglipVisionModel
        from transformers.models.siglip.modeling_siglip import SiglipMLP

        found = self._checkpoint.tensors(MIXTURE_FILE, _VIT, _CONNECTOR, _POSITION_TABLE)
        said = self._checkpoint.read_config("vit_config.json")
        layers = said["num_hidden_layers"] - 1  # the published model has not its last one
        config = SiglipVisionConfig.from_dict(said | {"num_hidden_layers": layers, "vision_use_head": False})
        patch, width = said["patch_size"], found[f"{_CONNECTOR}fc2.weight"].shape[0]
        with torch.device("meta"):
            vit = SiglipVisionModel(config)
            vit.connector = SiglipMLP(config)
            vit.connector.fc1 = torch.nn.Linear(config.hidden_size, width)
            vit.connector.fc2 = torch.nn.Linear(width, width)
            vit.places = torch.nn.Parameter(torch.empty(found[_POSITION_TABLE].shape))
        tensors = {name.removeprefix(_VIT): one for name, one in found.items()}
        tensors["places"] = tensors.pop(_POSITION_TABLE)
        flat = tensors["embeddings.patch_embedding.weight"]
        tensors["embeddings.patch_embedding.weight"] = flat.unflatten(1, (patch, patch, -1)).movedim(-1, 1)
        return load_tensors(vit, tensors)

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        import torch

        vit, kind = self.network, self.network.places.dtype
        patches = vit.embeddings.patch_embedding(batch.to(kind))
        height, width = patches.shape[2:]
        side = self._checkpoint.sizes.patches
        ids = (torch.arange(height)[:, None] * side + torch.arange(width)).flatten()
        placed = patches.flatten(2).transpose(1, 2) + vit.embeddings.position_embedding(ids)
        seen = vit.post_layernorm(vit.encoder(inputs_embeds=placed).last_hidden_state)
        return (vit.connector(seen) + vit.places[ids]).float()
