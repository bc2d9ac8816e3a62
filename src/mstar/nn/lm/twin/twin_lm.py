"""TwinLM: the part of `CausalLM` that serves without weights (`mstar twin`), on a decoder without a network."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mstar.nn.kv.page_pool import PagePool
from mstar.walk.component import Component
from mstar.walk.twin import OpBody, TwinSizes

if TYPE_CHECKING:
    from mstar.nn.lm.grammar import Vocabulary

DEFAULT_PAGES = 1024
"""Pages of a KV cache that is not sized from the memory of a device."""


class TwinLM(Component):
    """A language model without its decoder, which a subclass has as the cached property `decoder`."""

    _sizes: tuple[int | None, int, int]
    """Pages of the KV cache, positions of a page, bytes of swap space."""
    _vocabulary: Callable[[], Vocabulary | None]
    decoder: Any
    _eos_token_id: int | Callable[[], int | Sequence[int]]

    @functools.cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The end-of-sequence tokens."""
        ids = self._eos_token_id() if callable(self._eos_token_id) else self._eos_token_id
        return (ids,) if isinstance(ids, int) else tuple(ids)

    def prepare_twin(self, sizes: TwinSizes) -> Mapping[str, OpBody]:
        """Load the vocabulary for grammars, and a decoder without a network. All ops run on it as they are."""
        from mstar.nn.lm.twin.synthetic_decoder import SyntheticDecoder  # imports torch

        pages, page_size, _ = self._sizes
        tokens = (pages or DEFAULT_PAGES) * page_size if sizes.kv_tokens is None else sizes.kv_tokens
        text, vocabulary_size, grammar_tokens = self._twin_vocabulary()
        vars(self)["decoder"] = SyntheticDecoder(
            PagePool(-(-tokens // page_size), page_size),
            text=text,
            end_tokens=self.eos_token_ids,
            vocabulary_size=vocabulary_size,
            grammar_tokens=grammar_tokens,
            output_tokens=sizes.output_tokens,
        )
        if (vocabulary := self._vocabulary()) is not None:
            vocabulary.prepare()
        return self.own_bodies()

    def _twin_vocabulary(self) -> tuple[Sequence[int], int, Sequence[int]]:
        """Token ids of the text of a twin, the size of the vocabulary, and the tokens that close a grammar."""
        return (0,), max(self.eos_token_ids) + 1, ()
