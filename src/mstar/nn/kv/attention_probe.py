"""AttentionProbe: records what the layers of a network need of an attention backend, while torch's attention runs."""

from __future__ import annotations

from torch import Tensor

from mstar.nn.kv.attention_backend import LayerNeeds, View
from mstar.nn.kv.torch_attention import TorchAttention


class AttentionProbe(TorchAttention):
    """The backend of a trial run, before the backend of a decoder is final."""

    def __init__(self) -> None:
        self.needs: set[LayerNeeds] = set()

    def attend(  # noqa: PLR0913, PLR0917 - the interface
        self,
        view: View,
        query: Tensor,
        layer: int,
        scaling: float,
        window: int,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention over the pages: [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
        key_size, value_size = (memory[layer].shape[2] for memory in (view.store.keys, view.store.values))
        self.needs.add(LayerNeeds(key_size, value_size, sinks is not None))
        return super().attend(view, query, layer, scaling, window, softcap, sinks)
