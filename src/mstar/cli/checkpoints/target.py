"""Resolves the model argument of the commands: a checkpoint becomes `MODEL@WEIGHTS`, anything else stays as it is.

| argument | meaning |
|---|---|
| `smollm2`, `sd3@PATH`, `model.py`, `model.py:Class` | as before: an installed name or a model's file |
| a folder, a .gguf file | the checkpoint there; the family is recognized from its files |
| `ORG/NAME`, `ORG/NAME@REVISION`, `hub:...` | a Hugging Face Hub repository, from the local cache if it has it |

An installed name wins over a folder of the same name; `./NAME` means the folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from mstar.cli.checkpoints import diffusers_folder, gguf_file, sentence_transformers_folder, transformers_folder
from mstar.errors import LoadError
from mstar.nn.weights.sources import Weights
from mstar.walk.load import ENTRY_POINT_GROUP, default_model_name

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
_RECOGNIZERS: tuple[Callable[[Path], str | None], ...] = (
    gguf_file.recognize,
    diffusers_folder.recognize,
    sentence_transformers_folder.recognize,
    transformers_folder.recognize,
)
"""Each returns the installed model that serves the files at a path, or None if they are of another kind. Raises
LoadError for files of its kind that no model serves."""


def resolve_target(target: str) -> str:
    """The argument of `load_model` for a model argument. Raises LoadError for a checkpoint that no model serves."""
    source = checkpoint_source(target)
    if source is None:
        return target
    return f"{_recognize(Weights(source).path(), target)}@{source}"


def target_name(target: str) -> str:
    """Served name of a model argument by default: the name of the folder, file, repository or installed model."""
    source = checkpoint_source(target)
    if source is None:
        return default_model_name(target)
    name = Path(source.removeprefix("hub:").partition("@")[0] if source.startswith("hub:") else source).name
    return name.removesuffix(".gguf")


def checkpoint_source(target: str) -> str | None:
    """Argument of `Weights` if the target is a checkpoint; None if it is a model."""
    if target.startswith("hub:"):
        return target
    path = Path(target).expanduser()
    is_model = target.partition("@")[0].partition(":")[0].endswith(".py")
    if is_model or target in {point.name for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}:
        return None
    if path.is_dir() or path.suffix == ".gguf":
        return str(path.resolve())
    if _HUB_ID.fullmatch(target) and not target.startswith("."):
        return f"hub:{target}"
    if "/" in target.partition("@")[0]:
        fix = "pass a folder with config.json or model_index.json, a .gguf file, or a Hub id (ORG/NAME)"
        raise LoadError(f"{target}: no such folder or file\n  fix: {fix}")
    return None


def _recognize(path: Path, target: str) -> str:
    for recognize in _RECOGNIZERS:
        if (name := recognize(path)) is not None:
            return name
    names = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) if path.is_dir() else "a file"
    files = (
        "config.json (transformers), model_index.json (diffusers), modules.json (sentence-transformers) or a GGUF file"
    )
    raise LoadError(
        f"{target} is not a checkpoint: it has {names or 'no files'}\n"
        f"  fix: pass a folder with {files}, as save_pretrained writes it"
    )
