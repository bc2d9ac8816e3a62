"""The files of a diffusion model as diffusers lays them out: a folder for each part, and model_index.json.

A part is loaded by itself, where its ops run, and in float32. Networks, tokenizers and schedulers are those of the
libraries that their config files name; the pipelines that diffusers builds of them are not used. No library is loaded
until one of these is asked for.
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
    """A folder that diffusers' save_pretrained wrote, or `hub:` and a name."""

    def __init__(self, weights: str) -> None:
        self._weights = Weights(str(Path(weights).expanduser()))
        self.config = functools.cache(self._config)

    def _config(self, part: str, file: str = "config.json") -> Mapping[str, Any]:
        """What a part's file says, or with no part the index. It needs no library: a route asks for it."""
        path = (self._weights / part).path("*.json") / file
        if not path.is_file():
            raise LoadError(f"{path} is missing\n  fix: give a folder that diffusers' save_pretrained wrote")
        return json.loads(path.read_bytes())

    def encoder(self, part: str) -> Any:
        """A text encoder of transformers."""
        return (self._weights / part).network("float32").eval().requires_grad_(requires_grad=False)

    def tokenizer(self, part: str) -> Any:
        """A tokenizer of transformers, which fills texts up as the encoder behind it wants them."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained((self._weights / part).path("*.json", "*.txt", "*.model"))

    def scheduler(self, steps: int) -> Any:
        """The scheduler, for so many steps."""
        import diffusers

        config = self.config("scheduler", "scheduler_config.json")
        made: Any = getattr(diffusers, config["_class_name"]).from_config(config)
        made.set_timesteps(steps)
        made.set_begin_index(0)
        return made

    def network(self, part: str) -> Any:
        """A network of diffusers. Raises LoadError unless the tensors of its files are all that it has."""
        import diffusers
        import torch
        from transformers.initialization import no_init_weights

        from mstar.nn.weights.checkpoints import read_tensors

        folder = (self._weights / part).path()
        config = self.config(part)
        kind = getattr(diffusers, config["_class_name"])
        with no_init_weights():  # not by diffusers' own reader, which for some of them wants one more library
            network: Any = kind.from_config(config)
        tensors = read_tensors(folder, ignore_progress)
        wanted = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
        found = {name: list(tensor.shape) for name, tensor in tensors.items()}
        if faults := [name for name in sorted({*wanted, *found}) if wanted.get(name) != found.get(name)]:
            what = f"the tensors of {folder} do not make a {kind.__name__}: {format_names(faults[:20])} are missing, left over"
            raise LoadError(f"{what} or of another shape\n  fix: use the config.json that the weights were saved with")
        network.load_state_dict({name: tensor.to(torch.float32) for name, tensor in tensors.items()}, assign=True)
        return network.eval().requires_grad_(requires_grad=False)
