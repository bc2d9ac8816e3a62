"""Recognizes a GGUF file, or a folder with one: a Llama is served as a causal language model."""

from __future__ import annotations

from pathlib import Path

from mstar.errors import LoadError
from mstar.nn.weights.sources import find_gguf


def recognize(path: Path) -> str | None:
    """Name of the model that serves a GGUF file; None if there is none. Raises LoadError for other architectures."""
    file = find_gguf(path)
    if file is None:
        return None
    from mstar.nn.weights.gguf import GgufFile  # reads the header without other packages

    try:
        GgufFile(file)
    except LoadError as error:
        nearest = (
            "the nearest supported kind is a Llama with the tokenizer of SmolLM, such as SmolLM2 and its fine-tunes"
        )
        fix = "or pass the original folder with config.json and safetensors, which supports every family"
        raise LoadError(f"{error}, {fix}\n  note: {nearest}") from error
    return "causal-lm"
