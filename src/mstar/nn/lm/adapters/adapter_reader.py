"""Reads the tensors of an adapter, and assigns them to the matrix products of a captured network.

Every tensor of the file must change a product, and every target module of the configuration must have tensors: nothing
is left out silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from mstar.errors import LoadError, format_count, format_names, suggest_name
from mstar.nn.lm.adapters.low_rank import Linear, LoadedAdapter, LowRank
from mstar.nn.lm.adapters.peft_folder import MERGE_FIX, WEIGHTS_FILE, AdapterConfig, checksum, parse_config, read_files
from mstar.requests import Adapter

_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_MAX_SHOWN = 4
"""Maximum number of names in an error message."""
_FIX = "load an adapter that was trained for this base model, and that targets its linear layers"


def read_adapter(adapter: Adapter, linears: Sequence[Linear], dtype: torch.dtype) -> LoadedAdapter:
    """Load an adapter for a network with these products. Raises LoadError."""
    name = adapter.name
    config_content, content = read_files(name, Path(adapter.path))
    if checksum(config_content, content) != adapter.checksum:
        fix = "unload it and load it again; store each version of an adapter in a folder of its own"
        raise LoadError(f"the files of the adapter `{name}` have changed since it was loaded\n  fix: {fix}")
    config = parse_config(name, config_content)
    try:
        pairs = _pairs(name, load_tensors(content))
    except SafetensorError as error:
        problem = f"{WEIGHTS_FILE} of the adapter `{name}` is not a complete safetensors file: {error}"
        raise LoadError(f"{problem}\n  fix: copy it again") from error
    _check_targets(name, config, pairs)
    places = _places(linears)
    if unknown := [module for module in pairs if module not in places]:
        shown = format_names(unknown[:_MAX_SHOWN]) + (", ..." if len(unknown) > _MAX_SHOWN else "")
        hint = suggest_name(unknown[0], places)
        problem = f"the adapter `{name}` targets {format_count(len(unknown), 'module')} that the network does not have"
        raise LoadError(f"{problem} as a linear layer of every token: {shown}{hint}\n  fix: {_FIX}")
    updates: dict[tuple[int, int], LowRank] = {}
    for module, (first, second) in pairs.items():
        linear, part, size, start, columns = places[module]
        expected, actual = ((config.rank, size), (columns, config.rank)), (tuple(first.shape), tuple(second.shape))
        if actual != expected:
            problem = f"the adapter `{name}` has tensors of the shapes {actual[0]} and {actual[1]} for {module}"
            raise LoadError(f"{problem}; the network needs {expected[0]} and {expected[1]}\n  fix: {_FIX}")
        scaled = (second.float() * config.scale).T.contiguous()
        updates[linear, part] = LowRank(first.to(dtype).contiguous(), scaled.to(dtype), start)
    return LoadedAdapter(adapter, updates, len(linears), max(len(modules) for _, modules in linears))


def _pairs(name: str, tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Both matrices of each module. Raises LoadError for any other tensor, and for half of a pair."""
    halves: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = _TENSOR.fullmatch(key)
        if match is None:
            problem = f"the adapter `{name}` has the tensor `{key}`, which is not a matrix of plain LoRA"
            raise LoadError(f"{problem}\n  fix: {MERGE_FIX}")
        halves.setdefault(match[1], {})[match[2]] = tensor
    if incomplete := [module for module, both in halves.items() if len(both) < 2]:
        problem = f"the adapter `{name}` has one of the two matrices of {format_names(incomplete[:_MAX_SHOWN])}"
        raise LoadError(f"{problem}\n  fix: save it again")
    if not halves:
        raise LoadError(f"the adapter `{name}` has no tensors\n  fix: save it again after training")
    return {module: (both["A"], both["B"]) for module, both in halves.items()}


def _check_targets(name: str, config: AdapterConfig, pairs: Mapping[str, object]) -> None:
    """Raise LoadError for a target module without tensors."""
    unmatched = [
        target
        for target in config.target_modules
        if not any(module == target or module.endswith(f".{target}") for module in pairs)
    ]
    if unmatched:
        problem = f"no tensor of the adapter `{name}` is for its target modules {format_names(unmatched)}"
        raise LoadError(f"{problem}\n  fix: save it again, or remove them from `target_modules`")


def _places(linears: Sequence[Linear]) -> dict[str, tuple[int, int, int, int, int]]:
    """Product, number in it, size of the input, first column and number of columns of each module."""
    places: dict[str, tuple[int, int, int, int, int]] = {}
    for number, (size, modules) in enumerate(linears):
        start = 0
        for part, (module, columns) in enumerate(modules):
            places[module] = number, part, size, start, columns
            start += columns
    return places
