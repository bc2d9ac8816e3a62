"""Default sampling parameters of a checkpoint, from its generation_config.json.

The meaning of the fields is that of `generate` in transformers: without `do_sample` decoding is greedy, and sampling
without `top_k` uses the 50 most likely tokens. No library is imported, so front ends can read the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mstar.errors import LoadError
from mstar.requests import BadSampling, Sampling

FILE_NAME = "generation_config.json"
_DEFAULT_TOP_K = 50


def read_default_sampling(folder: Path) -> Sampling | None:
    """Sampling parameters in the generation_config.json of a folder, or None if it has none. Raises LoadError."""
    file = folder / FILE_NAME
    if not file.is_file():
        return None
    try:
        config: dict[str, Any] = {
            name: value for name, value in json.loads(file.read_bytes()).items() if value is not None
        }
        penalty = float(config.get("repetition_penalty", 1.0))
        if not config.get("do_sample", False):
            return Sampling(repetition_penalty=penalty)
        return Sampling(
            temperature=float(config.get("temperature", 1.0)),
            top_k=int(config.get("top_k", _DEFAULT_TOP_K)),
            top_p=float(config.get("top_p", 1.0)),
            min_p=float(config.get("min_p", 0.0)),
            repetition_penalty=penalty,
        )
    except BadSampling as error:
        raise LoadError(f"{file}: {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise LoadError(f"{file} is not a generation config: {error}\n  fix: correct it, or delete it") from error
