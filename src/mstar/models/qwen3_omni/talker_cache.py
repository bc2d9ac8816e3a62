"""KV cache of the talker: reads frames as embeddings, and records sampled codes for the repetition penalty.

Imports torch, so it is imported with the talker network only.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from mstar.nn.kv.kv_cache import PagedKV
from mstar.nn.lm.grammar import Vocabulary
from mstar.nn.lm.mrope import MRopeDecoder
from mstar.nn.lm.sampler_state import SamplerState


class TalkerKV(PagedKV):
    """KV cache whose tokens are the sampled codes, not the inputs."""

    def lineage(self) -> Iterator[Tensor]:
        """Yield all inputs in order, to recompute the cache after preemption."""
        for _, embeddings, _ in self.embeddings:
            yield embeddings


class TalkerDecoder(MRopeDecoder):
    """Decoder with talker caches."""

    def new_cache(self, vocabulary: Vocabulary | None) -> PagedKV:
        """Create a cache without pages."""
        return TalkerKV(self.store, SamplerState(vocabulary))
