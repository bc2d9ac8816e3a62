"""An architecture of a library: a tiny checkpoint of it, and how what mstar serves is compared with the library.

`measure` loads the folder as `mstar serve PATH` does: the model is recognized from the files. The outcome is `equal`,
`differs` or `refused`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from mstar.cli.checkpoints.target import resolve_target
from mstar.errors import LoadError
from mstar.walk.load import load_model

CHAT, TRANSCRIPTIONS, SPEECH = "/v1/chat/completions", "/v1/audio/transcriptions", "/v1/audio/speech"
EMBEDDINGS, IMAGES, VIDEOS, RERANK = "/v1/embeddings", "/v1/images/generations", "/v1/videos", "/v1/rerank"


@dataclass(frozen=True)
class Architecture:
    """`save` writes a folder as `save_pretrained` does; `compare` asserts that a model gives what the library gives.

    `save` returns what `compare` needs. `compare` returns what was compared, such as "12 tokens".
    """

    name: str
    endpoint: str
    save: Callable[[Path], Any]
    compare: Callable[[Any, Any], str]
    library: str = "transformers"
    is_fast: bool = False
    """Compared in CI. The others are compared by the nightly tests."""


@dataclass(frozen=True)
class Result:
    """What was measured for an architecture."""

    name: str
    library: str
    endpoint: str
    outcome: str
    served_by: str
    detail: str
    version: str
    """Version of the library."""
    seconds: float


def measure(architecture: Architecture, folder: Path) -> Result:
    """Save a tiny checkpoint, load it as `mstar serve PATH` does, and compare it with the library."""
    saved, served_by, begin = architecture.save(folder), "", time.perf_counter()
    try:
        target = resolve_target(str(folder))
        served_by = target.partition("@")[0]
        outcome, detail = "equal", architecture.compare(load_model(target), saved)
    except LoadError as error:
        outcome, detail = "refused", _reason(str(error), str(folder))
    except AssertionError as error:
        outcome, detail = "differs", str(error).partition("\n")[0]
    return Result(
        architecture.name,
        architecture.library,
        architecture.endpoint,
        outcome,
        served_by,
        detail,
        metadata.version(architecture.library),
        round(time.perf_counter() - begin, 2),
    )


def _reason(message: str, folder: str) -> str:
    """What an error says, without the folder and the list of what is supported."""
    first, *others = message.replace(f"{folder}/", "").splitlines()
    nearest = next((line.strip() for line in others if line.strip().startswith("nearest:")), "")
    return "; ".join(part for part in (first.partition("; supported:")[0], nearest) if part)
