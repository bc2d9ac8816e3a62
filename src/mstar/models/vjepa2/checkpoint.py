"""V-JEPA 2-AC checkpoint: network sizes, and tensors by network.

A folder with config.json (keys of the transformers V-JEPA 2) and safetensors with the published names under `encoder.`
and `predictor.`, or one with the published `vjepa2-ac-vitg.pt`. Reading sizes imports no library.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mstar.errors import LoadError, format_names
from mstar.nn.weights.sources import Weights, ignore_progress

PUBLISHED_FILE = "vjepa2-ac-vitg.pt"
_DEFAULT_CONFIG: dict[str, Any] = {
    "crop_size": 256,
    "patch_size": 16,
    "tubelet_size": 2,
    "hidden_size": 1408,
    "num_hidden_layers": 40,
    "num_attention_heads": 22,
    "mlp_ratio": 48 / 11,
    "layer_norm_eps": 1e-6,
    "pred_hidden_size": 1024,
    "pred_num_hidden_layers": 24,
    "pred_num_attention_heads": 16,
    "pred_mlp_ratio": 4.0,
    "pred_layer_norm_eps": 1e-6,
}
"""Published sizes, which no file contains."""
_UNUSED_TENSORS = ("encoder.pos_embed", "predictor.extrinsics_encoder.")
"""Published tensors that are not used."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a transformer."""

    width: int
    depth: int
    heads: int
    hidden: int
    eps: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of both networks and of the input images."""

    encoder: Shape
    predictor: Shape
    patch: int
    image_size: int
    """Side of the input images in pixels."""
    tubelet: int

    @property
    def grid(self) -> int:
        """Patches per side."""
        return self.image_size // self.patch

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Sizes:
        """Read a config. Missing keys have the published values."""
        merged = _DEFAULT_CONFIG | dict(config)

        def shape(prefix: str) -> Shape:
            width, depth = merged[f"{prefix}hidden_size"], merged[f"{prefix}num_hidden_layers"]
            hidden = int(width * merged[f"{prefix}mlp_ratio"])
            return Shape(
                width, depth, merged[f"{prefix}num_attention_heads"], hidden, merged[f"{prefix}layer_norm_eps"]
            )

        return cls(shape(""), shape("pred_"), merged["patch_size"], merged["crop_size"], merged["tubelet_size"])


class Checkpoint:
    """Folder, or `hub:NAME`. Networks are loaded as `dtype`."""

    def __init__(self, weights: str, dtype: str) -> None:
        self._weights = Weights(weights)
        self._dtype = dtype

    @functools.cached_property
    def sizes(self) -> Sizes:
        """Sizes from config.json, or the published sizes."""
        file = self._weights.path("config.json", PUBLISHED_FILE) / "config.json"
        return Sizes.from_config(json.loads(file.read_bytes()) if file.is_file() else {})

    def network(self, part: str) -> Any:
        """Load `encoder` or `predictor`. Raises LoadError unless its tensors match."""
        import torch

        from mstar.models.vjepa2 import network
        from mstar.nn.weights.checkpoints import parse_dtype

        with torch.device("meta"):
            built = network.Encoder(self.sizes) if part == "encoder" else network.Predictor(self.sizes)
        tensors = {name: value.to(parse_dtype(self._dtype)) for name, value in self._tensors(part).items()}
        try:
            built.load_state_dict(tensors, assign=True)
        except RuntimeError as error:
            mismatches = [line.strip() for line in str(error).splitlines()[1:]]
            what = f"the tensors do not match the {part} of V-JEPA 2-AC: {format_names(mismatches[:20])}"
            raise LoadError(f"{what}\n  fix: use the config.json that the weights were saved with") from None
        return built

    def _tensors(self, part: str) -> dict[str, Any]:
        import torch

        folder = self._weights.path("config.json", "*.safetensors", "*.safetensors.index.json", PUBLISHED_FILE)
        if (file := folder / PUBLISHED_FILE).is_file():
            published = torch.load(file, weights_only=True, mmap=True)[part]  # unpickles tensors only, never code
            tensors = {
                f"{part}.{name.removeprefix('module.').removeprefix('backbone.')}": published[name]
                for name in published
            }
        else:
            from mstar.nn.weights.checkpoints import read_tensors

            tensors = read_tensors(folder, ignore_progress, (f"{part}.",))
        return {
            name.removeprefix(f"{part}."): tensor
            for name, tensor in tensors.items()
            if not name.startswith(_UNUSED_TENSORS)
        }
