"""Kokoro checkpoint: config, tensors by part, and voices.

Reads the Hugging Face layout (kokoro-v1_0.pth and voices/*.pt, tensors only) or the layout of `scripts/fetch-kokoro`
(model.safetensors and voices.safetensors). No library is imported until tensors are read.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.errors import LoadError
from mstar.nn.weights.sources import Weights

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_WEIGHTS = "~/.cache/mstar/kokoro-82m"
"""Default folder of the fetch command."""
FETCH_COMMAND = "scripts/fetch-kokoro"
_TENSORS_FILE = "model.safetensors"
_VOICES_FILE = "voices.safetensors"
_PUBLISHED_FILE = "kokoro-v1_0.pth"


class Checkpoint:
    """Folder, or `hub:NAME`."""

    def __init__(self, weights: str) -> None:
        self._weights = Weights(str(Path(weights).expanduser()), fetch_command=FETCH_COMMAND)

    @functools.cached_property
    def _folder(self) -> Path:
        folder = self._weights.path("config.json", "*.safetensors", _PUBLISHED_FILE)
        if not (folder / "config.json").is_file():
            raise LoadError(
                f"{folder} has no config.json\n  fix: use the folder of a Kokoro model, or download it again"
            )
        return folder

    @functools.cached_property
    def _voices_folder(self) -> Path | None:
        """Folder of the published layout with one file per voice, or None."""
        return None if (self._folder / _VOICES_FILE).is_file() else (self._weights / "voices").path("*.pt")

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json: sizes, and the id of each phoneme."""
        return json.loads((self._folder / "config.json").read_bytes())

    @functools.cached_property
    def frame_samples(self) -> int:
        """Samples per frame: the vocoder upsamples pitch and energy, which have two values per frame."""
        sizes = self.config["istftnet"]
        return 2 * math.prod(sizes["upsample_rates"]) * sizes["gen_istft_hop_size"]

    @functools.cached_property
    def voices(self) -> tuple[str, ...]:
        """Names of the voices. The first letter is the language: `a` is American, `b` is British English."""
        if self._voices_folder is not None:
            return tuple(sorted(file.stem for file in self._voices_folder.glob("*.pt")))
        from safetensors import safe_open

        with safe_open(self._folder / _VOICES_FILE, framework="numpy") as opened:
            return tuple(sorted(opened.keys()))

    def voice_style(self, name: str) -> Tensor:
        """Return the style of a voice, [510, 256], indexed by the phrase length."""
        if self._voices_folder is not None:
            return _load_tensors(self._voices_folder / f"{name}.pt").flatten(1)
        from safetensors import safe_open

        with safe_open(self._folder / _VOICES_FILE, framework="pt") as opened:
            return opened.get_tensor(name)

    def part_tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of one of the five parts."""
        if (self._folder / _TENSORS_FILE).is_file():
            from mstar.nn.weights.checkpoints import read_tensors
            from mstar.nn.weights.sources import ignore_progress

            tensors = read_tensors(self._folder, ignore_progress, (f"{name}.",))
            return {full.removeprefix(f"{name}."): tensor for full, tensor in tensors.items()}
        published = _load_tensors(self._folder / _PUBLISHED_FILE)[name]
        return {full.removeprefix("module."): tensor for full, tensor in published.items()}


def _load_tensors(file: Path) -> Any:
    import torch

    return torch.load(file, map_location="cpu", weights_only=True)  # unpickles tensors only, never code
