"""AttentionBackend: what computes paged attention, one per KV store, chosen when a decoder is loaded.

| backend | runs on | by |
|---|---|---|
| `torch` | CPUs, other devices | fused kernels on a CPU, otherwise torch's attention over gathered pages |
| `triton` | GPUs, or a CPU in Triton's interpreter | `mstar.nn.triton`, one kernel for prefill and decode |
| `flashinfer` | GPUs where it is installed | `mstar.nn.kv.flashinfer_attention`, the kernels of FlashInfer |

`mstar.nn.kv.backend_choice` chooses one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

View = Any
"""An `AttentionView` or `AttentionBatch` of `mstar.nn.kv.paged_attention`, which imports this module."""


class LayerNeeds(NamedTuple):
    """Attention of a layer, as far as a backend can lack it."""

    key_size: int
    value_size: int
    has_sinks: bool


class AttentionPlan(Protocol):
    """What a backend computes on the host once per forward, for all layers."""

    arrays: tuple[Tensor, ...]
    """Integers that it reads on the device. `AttentionBatch.move` replaces them by copies there."""


class AttentionBackend(Protocol):
    """Writes keys and values to their pages, and attends over the pages."""

    name: ClassVar[str]
    is_partial: ClassVar[bool] = False
    """Whether it cannot run the layers of some networks (`unsupported`)."""
    split_positions: int = 0
    """Number of positions of a request from which on decode runs another kernel, which is compiled when it first runs;
    0 if there is no such kernel."""

    def plan(self, view: View) -> Sequence[AttentionPlan]:
        """Plans of a forward. `view.plan` has them."""
        ...

    def write(self, batch: View, key: Tensor, value: Tensor, layer: int) -> None:
        """Write the keys and values of all tokens, [1, heads, tokens, size], to their slots."""
        ...

    def attend(  # noqa: PLR0913, PLR0917 - called once per layer, where a record of its own would cost more
        self,
        view: View,
        query: Tensor,
        layer: int,
        scaling: float,
        window: int,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention over the pages: [1, heads, tokens, size] in, [1, tokens, heads, size] out.

        A token sees the last `window` of its positions, or all of them if it is 0. `softcap` limits the scores to this
        size by tanh, 0 does not. `sinks`, [heads], are scores that take part in the softmax and have no value.
        """
        ...

    def prepare_graph(self, view: View) -> object:  # noqa: ARG002 - most need nothing
        """Do what a captured step needs on the host before it is captured and before each replay.

        Returns what the captured graph uses, which the graph keeps.
        """
        return None

    def unsupported(self, needs: Collection[LayerNeeds]) -> str:  # noqa: ARG002 - most have no limits
        """What a network with these layers needs and the backend does not have; empty if it can run it."""
        return ""
