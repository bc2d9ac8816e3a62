"""The error for a checkpoint that no installed model serves: what it is, the nearest supported kind, what to do."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mstar.errors import LoadError, format_names


def read_json(file: Path, kind: type[dict[str, Any]] | type[list[Any]] = dict) -> Any:
    """Parse a JSON file that holds an object, or a value of another kind. Raises LoadError."""
    try:
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise LoadError(f"{file}: cannot be read: {error}\n  fix: allow this user to read it") from error
    except ValueError as error:
        raise LoadError(f"{file} is not JSON: {error}\n  fix: download it again") from error
    if not isinstance(value, kind):
        expected = "an object" if kind is dict else "a list"
        raise LoadError(f"{file} is not {expected} in JSON\n  fix: download it again")
    return value


def unsupported(file: Path, what: str, nearest: str, supported: Iterable[str], advice: str = "") -> LoadError:
    """Error for a file that names something no model serves."""
    fix = advice or "use a checkpoint of that kind, or write a model around this one (docs/authoring.md)"
    return LoadError(
        f"{file}: {what} is not supported; supported: {format_names(supported)}\n  nearest: {nearest}\n  fix: {fix}"
    )
