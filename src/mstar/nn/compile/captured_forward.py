"""CapturedForward: the forward of a network as a decoder runs it, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor


class CapturedForward(NamedTuple):
    """What capturing a network gives."""

    run: Callable[..., Any]
    """Maps embeddings, positions and the indices of last tokens to logits and hidden states."""
    window: int | None = None
    """The largest sliding window, if every layer has one."""
    linears: tuple[Any, ...] = ()
    """Matrix products that adapters can change."""
    batch_dependence: str = ""
    """Why results can depend on the batch; empty if they cannot."""

    @property
    def parameter_count(self) -> int:
        """Number of parameters that its graph reads; 0 without a graph."""
        return sum(value.numel() for value in self._constants)

    @property
    def weight_bytes(self) -> int:
        """Bytes of these parameters."""
        return sum(value.nbytes for value in self._constants)

    @property
    def _constants(self) -> list[Tensor]:
        constants = vars(getattr(self.run, "__self__", None) or object).values()
        return [value for value in constants if isinstance(value, Tensor)]
