"""The files of a V-JEPA 2-AC model: what sizes its networks have, and their tensors, each network's by itself.

Either a folder with config.json, in the words of transformers' V-JEPA 2, and safetensors with the published names
behind `encoder.` and `predictor.`, or one with the published `vjepa2-ac-vitg.pt`. Reading sizes needs no library.
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
"""Those that were published: they are in no file."""
_UNUSED_TENSORS = ("encoder.pos_embed", "predictor.extrinsics_encoder.")
"""Tensors of published files that nothing is computed with."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a network's layers."""

    width: int
    depth: int
    heads: int
    hidden: int
    eps: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of both networks, and of the pictures they see."""

    encoder: Shape
    predictor: Shape
    patch: int
    image_size: int
    """So many pixels high and wide are the pictures."""
    tubelet: int

    @property
    def grid(self) -> int:
        """So many patches high and wide."""
        return self.image_size // self.patch

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Sizes:
        """Of a config.json, in which what is left out is as it was published."""
        told = _DEFAULT_CONFIG | dict(config)

        def shape(of: str) -> Shape:
            width, depth = told[f"{of}hidden_size"], told[f"{of}num_hidden_layers"]
            hidden = int(width * told[f"{of}mlp_ratio"])
            return Shape(width, depth, told[f"{of}num_attention_heads"], hidden, told[f"{of}layer_norm_eps"])

        return cls(shape(""), shape("pred_"), told["patch_size"], told["crop_size"], told["tubelet_size"])


class Checkpoint:
    """A folder, or `hub:` and a name; networks are in `dtype`."""

    def __init__(self, weights: str, dtype: str) -> None:
        self._weights = Weights(weights)
        self._dtype = dtype

    @functools.cached_property
    def sizes(self) -> Sizes:
        """Those of its config.json, or the published ones."""
        file = self._weights.path("config.json", PUBLISHED_FILE) / "config.json"
        return Sizes.from_config(json.loads(file.read_bytes()) if file.is_file() else {})

    def network(self, part: str) -> Any:
        """The `encoder` or the `predictor`, ready to run. Raises LoadError unless its tensors fit."""
        import torch

        from mstar.models.vjepa2 import network
        from mstar.nn.weights.checkpoints import parse_dtype

        with torch.device("meta"):
            made = network.Encoder(self.sizes) if part == "encoder" else network.Predictor(self.sizes)
        tensors = {name: value.to(parse_dtype(self._dtype)) for name, value in self._tensors(part).items()}
        try:
            made.load_state_dict(tensors, assign=True)
        except RuntimeError as error:
            faults = [line.strip() for line in str(error).splitlines()[1:]]
            what = f"these tensors do not make the {part} of a V-JEPA 2-AC: {format_names(faults[:20])}"
            raise LoadError(f"{what}\n  fix: use the config.json that the weights were saved with") from None
        return made.eval().requires_grad_(requires_grad=False)

    def _tensors(self, part: str) -> dict[str, Any]:
        import torch

        folder = self._weights.path("config.json", "*.safetensors", "*.safetensors.index.json", PUBLISHED_FILE)
        if (file := folder / PUBLISHED_FILE).is_file():
            held = torch.load(file, weights_only=True, mmap=True)[part]  # tensors only: no code of the file is run
            found = {f"{part}.{name.removeprefix('module.').removeprefix('backbone.')}": held[name] for name in held}
        else:
            from mstar.nn.weights.checkpoints import read_tensors

            found = read_tensors(folder, ignore_progress, (f"{part}.",))
        return {
            name.removeprefix(f"{part}."): one for name, one in found.items() if not name.startswith(_UNUSED_TENSORS)
        }
