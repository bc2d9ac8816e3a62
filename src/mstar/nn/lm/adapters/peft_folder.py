"""Folder of a LoRA adapter in the PEFT layout: adapter_config.json and adapter_model.safetensors.

A configuration that asks for something else than plain LoRA is an error: every field is either used, known to change
nothing at inference, or rejected. Imports no torch, so that a front end can open an adapter. The tensors are read on
the worker (`mstar.nn.lm.adapters.adapter_reader`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mstar.errors import LoadError, format_names
from mstar.requests import Adapter

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MAX_NAME_CHARS = 64
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_CHARS - 1}}}")
MERGE_FIX = "merge the adapter into the weights with peft (merge_and_unload), and serve the merged model"
"""What to do about an adapter that cannot be used."""
_IGNORED = frozenset(
    (
        *("base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "task_type", "peft_version"),
        *("lora_dropout", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config"),
        *("exclude_modules", "layers_to_transform", "layers_pattern", "megatron_core", "ensure_weight_tying"),
        *("qalora_group_size", "velora_config", "monteclora_config"),
    )
)
"""Fields that change nothing at inference, or only which tensors were written. Some configure a method that another
field enables, and that field is rejected."""
_USED = frozenset(("peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "bias", "init_lora_weights"))
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initializations that change the weights of the base model too: the adapter does not fit the published ones."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What an adapter's configuration says about its tensors."""

    rank: int
    scale: float
    """Factor of the update: alpha / rank, or alpha / sqrt(rank) for rank-stabilized LoRA."""
    target_modules: tuple[str, ...]
    """Names, or ends of names, of which each must have tensors; empty if a pattern selects the modules."""


def open_adapter(name: str, path: str | Path) -> Adapter:
    """The adapter in a folder, with the checksum of its files. Raises LoadError for one that is not supported."""
    if not _NAME.fullmatch(name):
        fix = f"use at most {MAX_NAME_CHARS} letters, digits, dots, dashes and underscores"
        raise LoadError(f"{name[:MAX_NAME_CHARS]!r} is not a name for an adapter\n  fix: {fix}")
    try:
        folder = Path(path).expanduser().absolute()
    except RuntimeError as error:  # the home of a user who does not exist
        raise LoadError(f"the adapter `{name}` cannot be read: {error}\n  fix: use an absolute path") from error
    config, weights = read_files(name, folder)
    parse_config(name, config)
    return Adapter(name, str(folder), checksum(config, weights))


def read_files(name: str, folder: Path) -> tuple[bytes, bytes]:
    """Content of the configuration and of the weights. Raises LoadError."""
    if not (folder / WEIGHTS_FILE).is_file() and (folder / "adapter_model.bin").is_file():
        problem = f"the adapter `{name}` is stored with pickle (adapter_model.bin), which can run arbitrary code"
        raise LoadError(f"{problem}\n  fix: save it with save_pretrained(..., safe_serialization=True)")
    try:
        return (folder / CONFIG_FILE).read_bytes(), (folder / WEIGHTS_FILE).read_bytes()
    except (OSError, ValueError) as error:  # a ValueError for what no path can have, such as a null byte
        reason = f"{error.strerror}: {Path(error.filename).name}" if isinstance(error, OSError) else str(error)
        problem = f"the adapter `{name}` cannot be read: {reason}"
        raise LoadError(f"{problem}\n  fix: use a folder with {CONFIG_FILE} and {WEIGHTS_FILE}") from error


def checksum(config: bytes, weights: bytes) -> str:
    """Checksum of the files of an adapter."""
    digest = hashlib.blake2b(len(config).to_bytes(8, "little"), digest_size=16)
    digest.update(config)
    digest.update(weights)
    return digest.hexdigest()


def parse_config(name: str, content: bytes) -> AdapterConfig:
    """Parse adapter_config.json. Raises LoadError for what is not plain LoRA."""
    try:
        parsed = json.loads(content)
    except ValueError as error:
        fix = "save the adapter again"
        raise LoadError(f"{CONFIG_FILE} of the adapter `{name}` is not JSON: {error}\n  fix: {fix}") from error
    if not isinstance(parsed, dict) or str(cast("Any", parsed).get("peft_type", "")).upper() != "LORA":
        problem = f"the adapter `{name}` is not LoRA: `peft_type` of its {CONFIG_FILE} is another one"
        raise LoadError(f"{problem}\n  fix: {MERGE_FIX}")
    fields = cast("dict[str, Any]", parsed)
    _reject_unsupported(name, fields)
    rank, alpha, targets = fields.get("r", 8), fields.get("lora_alpha", 8), fields.get("target_modules")
    if type(rank) is not int or rank < 1 or type(alpha) not in (int, float) or not math.isfinite(alpha):
        problem = f"the adapter `{name}` has r = {rank!r} and lora_alpha = {alpha!r}"
        raise LoadError(f"{problem}\n  fix: r must be 1 or more, and lora_alpha a finite number")
    scale = alpha / math.sqrt(rank) if fields.get("use_rslora") else alpha / rank
    names = tuple(map(str, cast("list[Any]", targets))) if isinstance(targets, list) else ()
    return AdapterConfig(rank, scale, names)


def _reject_unsupported(name: str, fields: Mapping[str, Any]) -> None:
    """Raise LoadError for fields that ask for something else than plain LoRA."""
    unsupported = [key for key, value in fields.items() if value and key not in _USED and key not in _IGNORED]
    if fields.get("bias", "none") != "none":
        unsupported.append("bias")
    method = fields.get("init_lora_weights", True)
    if isinstance(method, str) and method.lower().startswith(_CHANGES_BASE):
        unsupported.append("init_lora_weights")
    if unsupported:
        values = ", ".join(f"{key} = {json.dumps(fields[key])[:80]}" for key in unsupported)
        problem = f"the adapter `{name}` uses {format_names(unsupported)}, which is not supported ({values})"
        raise LoadError(f"{problem}\n  fix: {MERGE_FIX}")
