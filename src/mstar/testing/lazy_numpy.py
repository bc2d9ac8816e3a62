"""numpy, imported on first use.

The fake components of this package can then be imported, traced and drawn without numpy (`mstar check`); only running
them needs it.
"""

from __future__ import annotations

import importlib
from typing import Any


class _LazyModule:
    """A module whose import waits for the first attribute access."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


np: Any = _LazyModule("numpy")
