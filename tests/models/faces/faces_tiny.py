"""Small MobileStyleGAN checkpoint in which every tensor has an effect."""

import json

import torch
from safetensors.torch import save_file

from mstar.models.faces.network import build_network

CONFIG = {"style": 8, "depth": 2, "channels": [16, 16, 8]}


def save(folder):
    """Save random weights, and return the folder."""
    generator, tensors = torch.Generator().manual_seed(3), {}
    for part in ("mapping", "synthesis"):
        for name, tensor in build_network(part, CONFIG).state_dict().items():
            tensors[f"{part}.{name}"] = (
                torch.randn(tensor.shape, generator=generator) / max(tensor[0].numel(), 4) ** 0.5
            )
    for name in ("weight", "bias"):
        tensors[f"synthesis.paint.{name}"] /= 4  # so that no color is clipped
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, folder / "model.safetensors")
    return str(folder)
