"""The call after each matrix product of a captured network that lets the adapters of the running batch change it."""

from __future__ import annotations

from torch import Tensor

from mstar.nn.kv.paged_attention import current_batch


def adapt_linear(out: Tensor, x: Tensor, linear: int) -> Tensor:
    """The result of a product, changed by the adapters of the running batch. `linear` is its number in the graph."""
    adapters = current_batch().adapters
    return out if adapters is None else adapters.add(out, x, linear)
