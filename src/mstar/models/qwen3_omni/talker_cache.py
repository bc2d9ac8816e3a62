"""The talker's caches: they read frames as embeddings, and remember the codes that were chosen, so as to repeat fewer.

It needs torch, and is imported where the talker is.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from mstar.nn.kv.kv_cache import PagedKV
from mstar.nn.lm.grammar import Vocabulary
from mstar.nn.lm.mrope import MRopeDecoder
from mstar.nn.lm.sampler import SamplerState


class TalkerKV(PagedKV):
    """A cache whose tokens are what was said, not what was read."""

    def lineage(self) -> Iterator[Tensor]:
        """Everything that was read, in order."""
        for _, embeddings, _ in self.embeddings:
            yield embeddings


class TalkerDecoder(MRopeDecoder):
    """A decoder with such caches."""

    def new_cache(self, vocabulary: Vocabulary | None) -> PagedKV:
        """A cache with no pages yet."""
        return TalkerKV(self.store, SamplerState(vocabulary))
