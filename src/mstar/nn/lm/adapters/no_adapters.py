"""NoAdapters: in place of an AdapterCache, for engines that run the base model only. A request with one is rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mstar.errors import LoadError, RowsFailed, Unsupported
from mstar.nn.lm.adapters.peft_folder import MERGE_FIX
from mstar.requests import Sampling


class NoAdapters:
    """Rejects all adapters."""

    def __init__(self, runner: str) -> None:
        """`runner` is what runs the model, for error messages."""
        self._problem = f"{runner} does not compute adapters here\n  fix: {MERGE_FIX}"

    def preload(self, folders: Mapping[str, str]) -> None:
        """Raise LoadError if a placement has adapters."""
        if folders:
            raise LoadError(self._problem)

    def reject(self, params: Sequence[Sampling]) -> None:
        """Raise RowsFailed for requests with an adapter."""
        if errors := {row: Unsupported(self._problem) for row, own in enumerate(params) if own.adapter is not None}:
            raise RowsFailed(errors)
