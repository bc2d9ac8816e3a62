"""The files of a Kokoro model: what its config.json says, the tensors of each of its parts, and its voices.

A folder is read as its hub has it (kokoro-v1_0.pth and voices/*.pt, of which only tensors are taken) or as
`scripts/fetch-kokoro` writes it (model.safetensors and voices.safetensors, with the same names). Needs no library until
tensors are asked for. Nothing is made of them here.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.errors import LoadError
from mstar.nn.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

FETCHED = "~/.cache/mstar/kokoro-82m"
"""Where `scripts/fetch-kokoro` puts it."""
_TENSORS, _VOICES, _PUBLISHED = "model.safetensors", "voices.safetensors", "kokoro-v1_0.pth"


class Checkpoint:
    """A folder, or `hub:` and a name."""

    def __init__(self, weights: str) -> None:
        self._weights = Weights(str(Path(weights).expanduser()))

    @functools.cached_property
    def _folder(self) -> Path:
        folder = self._weights.path("config.json", "*.safetensors", _PUBLISHED)
        if not (folder / "config.json").is_file():
            raise LoadError(
                f"{folder} holds no config.json\n  fix: give the folder of a Kokoro model, or fetch it again"
            )
        return folder

    @functools.cached_property
    def _voices(self) -> Path | None:
        """Where voices are files of their own, as published."""
        return None if (self._folder / _VOICES).is_file() else (self._weights / "voices").path("*.pt")

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """What config.json says: sizes, and the number of each phoneme."""
        return json.loads((self._folder / "config.json").read_bytes())

    @functools.cached_property
    def voices(self) -> tuple[str, ...]:
        """The names of its voices. Their first letter is their language, `a` and `b` are American and British."""
        if self._voices is not None:
            return tuple(sorted(file.stem for file in self._voices.glob("*.pt")))
        from safetensors import safe_open

        with safe_open(self._folder / _VOICES, framework="numpy") as opened:
            return tuple(sorted(opened.keys()))

    def voice(self, name: str) -> Tensor:
        """The style in which a voice says phrases, [510, 256], by their length."""
        if self._voices is not None:
            return _tensors_only(self._voices / f"{name}.pt").flatten(1)
        from safetensors import safe_open

        with safe_open(self._folder / _VOICES, framework="pt") as opened:
            return opened.get_tensor(name)

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors of one of its five parts, by their names in it."""
        if (self._folder / _TENSORS).is_file():
            from mstar.nn.checkpoints import read_tensors
            from mstar.nn.weights import untold

            read = read_tensors(self._folder, untold, (f"{name}.",))
            return {full.removeprefix(f"{name}."): tensor for full, tensor in read.items()}
        published = _tensors_only(self._folder / _PUBLISHED)[name]
        return {full.removeprefix("module."): tensor for full, tensor in published.items()}


def _tensors_only(file: Path) -> Any:
    import torch

    return torch.load(file, map_location="cpu", weights_only=True)  # no code of the file is run
