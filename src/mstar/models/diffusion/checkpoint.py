"""Diffusers checkpoint: one subfolder per part, and model_index.json.

Each part is loaded alone, in float32, on the worker that runs its ops. Networks, tokenizers and schedulers are the
classes that the config files name; diffusers pipelines are not used. No library is imported until a part is loaded.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mstar.errors import LoadError, format_names
from mstar.nn.weights.sources import Weights, ignore_progress


class Checkpoint:
    """Folder written by save_pretrained of diffusers, or `hub:NAME`."""

    def __init__(self, weights: str) -> None:
        self._weights = Weights(str(Path(weights).expanduser()))
        self.config = functools.cache(self._config)

    def _config(self, part: str, file: str = "config.json") -> Mapping[str, Any]:
        """Read the config of a part, or the index for an empty name. Imports no library, so routes can call it."""
        path = (self._weights / part).path("*.json") / file
        if not path.is_file():
            raise LoadError(f"{path} is missing\n  fix: use a folder that save_pretrained of diffusers wrote")
        return json.loads(path.read_bytes())

    def encoder(self, part: str) -> Any:
        """Load a text encoder of transformers."""
        return (self._weights / part).network("float32")

    def tokenizer(self, part: str) -> Any:
        """Load a tokenizer of transformers."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained((self._weights / part).path("*.json", "*.txt", "*.model"))

    def scheduler(self, steps: int, **schedule: Any) -> Any:
        """Create the scheduler with this number of steps. `schedule` are further arguments of its `set_timesteps`."""
        import diffusers

        config = self.config("scheduler", "scheduler_config.json")
        scheduler: Any = getattr(diffusers, config["_class_name"]).from_config(config)
        scheduler.set_timesteps(steps, **schedule)
        scheduler.set_begin_index(0)
        return scheduler

    def network(self, part: str) -> Any:
        """Load a network of diffusers. Raises LoadError unless the tensors match its config exactly."""
        import diffusers
        import torch
        from transformers.initialization import no_init_weights

        from mstar.nn.weights.checkpoints import read_tensors

        folder = (self._weights / part).path()
        config = self.config(part)
        network_class = getattr(diffusers, config["_class_name"])
        with no_init_weights():  # from_pretrained of some classes needs accelerate
            network: Any = network_class.from_config(config)
        tensors = read_tensors(folder, ignore_progress)
        expected = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
        actual = {name: list(tensor.shape) for name, tensor in tensors.items()}
        if mismatched := [name for name in sorted({*expected, *actual}) if expected.get(name) != actual.get(name)]:
            what = f"the tensors of {folder} do not match {network_class.__name__}: {format_names(mismatched[:20])}"
            fix = "use the config.json that the weights were saved with"
            raise LoadError(f"{what} are missing, unexpected or of another shape\n  fix: {fix}")
        network.load_state_dict({name: tensor.to(torch.float32) for name, tensor in tensors.items()}, assign=True)
        return network
