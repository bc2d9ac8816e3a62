"""Recognizes a folder of sentence-transformers by the module list in its modules.json."""

from __future__ import annotations

from pathlib import Path

from mstar.cli.checkpoints.refusal import read_json, unsupported

MODULES = ("Transformer", "Pooling", "Normalize")
"""Modules that the embedding model has, in this order. The last one is optional. The model checks them too."""


def recognize(path: Path) -> str | None:
    """Name of the model that serves a sentence-transformers folder; None if it is none. Raises LoadError for others."""
    file = path / "modules.json"
    if not file.is_file():
        return None
    types = [module.get("type", "?") if isinstance(module, dict) else module for module in read_json(file, list)]
    names = tuple(str(kind).rpartition(".")[2] for kind in types)
    if names in (MODULES, MODULES[:2]):
        return "sentence-transformer"
    nearest = "Transformer, Pooling, and optionally Normalize (sentence-transformer)"
    raise unsupported(file, f"the list of modules {', '.join(names)}", nearest, MODULES)
