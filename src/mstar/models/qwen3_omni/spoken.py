"""The talker's caches: they read frames as embeddings, and remember the codes that were chosen, so as to repeat fewer.

It needs torch, and is imported where the talker is.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from mstar.nn.axes import AxesDecoder
from mstar.nn.chooser import Chooser
from mstar.nn.grammar import Vocabulary
from mstar.nn.store import PagedKV


class SpokenKV(PagedKV):
    """A cache whose tokens are what was said, not what was read."""

    def lineage(self) -> Iterator[Tensor]:
        """Everything that was read, in order."""
        for _, embeddings, _ in self.embeddings:
            yield embeddings


class SpeakingDecoder(AxesDecoder):
    """A decoder with such caches."""

    def new_cache(self, vocabulary: Vocabulary | None) -> PagedKV:
        """A cache with no pages yet."""
        return SpokenKV(self.store, Chooser(vocabulary))
