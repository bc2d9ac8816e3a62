"""Adapters with random weights in the PEFT layout, large enough to change tokens, and networks merged with them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mstar.nn.lm.adapters.peft_folder import CONFIG_FILE, WEIGHTS_FILE, open_adapter
from mstar.requests import Adapter

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PREFIX = "base_model.model."


def write_adapter(
    folder: Path,
    network: Any,
    seed: int,
    *,
    targets: Sequence[str] = ALL_LINEAR,
    rank: int = 4,
    size: float = 1.0,
    **config: Any,
) -> Adapter:
    """Write an adapter for the linear layers of a network with these names. `size` is relative to the weights."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * (size / (rank * columns)) ** 0.5

    tensors: dict[str, Tensor] = {}
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and name.rpartition(".")[2] in targets:
            tensors[f"{PREFIX}{name}.lora_A.weight"] = normal(rank, module.in_features)
            tensors[f"{PREFIX}{name}.lora_B.weight"] = normal(module.out_features, rank)
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": [*targets]} | config
    return write_files(folder, tensors, fields)


def write_files(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Adapter:
    """Write the files of an adapter, and open it."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / WEIGHTS_FILE)
    (folder / CONFIG_FILE).write_text(json.dumps(config))
    return open_adapter(folder.name, folder)


def merged(network: Any, adapter: Adapter) -> Any:
    """A copy of a network with the weights of an adapter added to its own."""
    network, folder = copy.deepcopy(network), Path(adapter.path)
    config, tensors = json.loads((folder / CONFIG_FILE).read_text()), load_file(folder / WEIGHTS_FILE)
    root = config["r"] ** 0.5 if config.get("use_rslora") else config["r"]
    for key, first in tensors.items():
        if key.endswith(".lora_A.weight"):
            second = tensors[key.replace("lora_A", "lora_B")]
            weight = network.get_submodule(key.removeprefix(PREFIX).removesuffix(".lora_A.weight")).weight
            weight.data += (second.double() @ first.double() * (config["lora_alpha"] / root)).to(weight.dtype)
    return network
