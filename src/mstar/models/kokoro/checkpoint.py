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
from mstar.nn.weights.sources import Weights

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_WEIGHTS = "~/.cache/mstar/kokoro-82m"
"""Where `scripts/fetch-kokoro` puts it."""
_TENSORS_FILE, _VOICES_FILE, _PUBLISHED_FILE = "model.safetensors", "voices.safetensors", "kokoro-v1_0.pth"


class Checkpoint:
    """A folder, or `hub:` and a name."""

    def __init__(self, weights: str) -> None:
        self._weights = Weights(str(Path(weights).expanduser()))

    @functools.cached_property
    def _folder(self) -> Path:
        folder = self._weights.path("config.json", "*.safetensors", _PUBLISHED_FILE)
        if not (folder / "config.json").is_file():
            raise LoadError(
                f"{folder} holds no config.json\n  fix: give the folder of a Kokoro model, or fetch it again"
            )
        return folder

    @functools.cached_property
    def _voices_folder(self) -> Path | None:
        """Where voices are files of their own, as published."""
        return None if (self._folder / _VOICES_FILE).is_file() else (self._weights / "voices").path("*.pt")

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """What config.json says: sizes, and the number of each phoneme."""
        return json.loads((self._folder / "config.json").read_bytes())

    @functools.cached_property
    def voices(self) -> tuple[str, ...]:
        """The names of its voices. Their first letter is their language, `a` and `b` are American and British."""
        if self._voices_folder is not None:
            return tuple(sorted(file.stem for file in self._voices_folder.glob("*.pt")))
        from safetensors import safe_open

        with safe_open(self._folder / _VOICES_FILE, framework="numpy") as opened:
            return tuple(sorted(opened.keys()))

    def voice_style(self, name: str) -> Tensor:
        """The style in which a voice says phrases, [510, 256], by their length."""
        if self._voices_folder is not None:
            return _load_tensors(self._voices_folder / f"{name}.pt").flatten(1)
        from safetensors import safe_open

        with safe_open(self._folder / _VOICES_FILE, framework="pt") as opened:
            return opened.get_tensor(name)

    def part_tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of one of its five parts, by their names in it."""
        if (self._folder / _TENSORS_FILE).is_file():
            from mstar.nn.weights.checkpoints import read_tensors
            from mstar.nn.weights.sources import ignore_progress

            read = read_tensors(self._folder, ignore_progress, (f"{name}.",))
            return {full.removeprefix(f"{name}."): tensor for full, tensor in read.items()}
        published = _load_tensors(self._folder / _PUBLISHED_FILE)[name]
        return {full.removeprefix("module."): tensor for full, tensor in published.items()}


def _load_tensors(file: Path) -> Any:
    import torch

    return torch.load(file, map_location="cpu", weights_only=True)  # no code of the file is run
