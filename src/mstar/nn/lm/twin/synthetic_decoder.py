"""SyntheticDecoder: in place of a `Decoder`, for a language model without weights (`mstar twin`).

It repeats a text, and ends an answer after a number of tokens. Tokens pass mstar's sampler if a request has a grammar,
biases or log probabilities, so structured output, tools and stop strings work. KV cache pages are counted as in a real
pool, so admission, eviction and preemption happen at the same numbers of tokens; nothing is stored in them. There is no
prefix cache.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from mstar.errors import NeverFits, RowsFailed
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.grammar import Vocabulary
from mstar.nn.lm.sampler import sample_tokens
from mstar.nn.lm.sampler_state import SamplerSnapshot, SamplerState
from mstar.nn.synthetic_values import make_array
from mstar.requests import Sampling
from mstar.walk.batching import Layout
from mstar.walk.states import KV

LOGIT_MARGIN = 20.0
"""Logit of the next token of the text above all others."""
GRAMMAR_TOKENS = ("}", "]", '"', ",", ":", "{", "[", "0", "1")
"""Tokens that a grammar gets first if it allows them, after the end of the output: they close what is open."""
HIDDEN_SIZE = 16
"""Size of synthetic hidden states."""


class SyntheticKV(KV):
    """KV cache of one request: its tokens, and pages without content."""

    is_evictable: ClassVar[bool] = True

    def __init__(self, pool: PagePool, sampler: SamplerState, table: Any = None) -> None:
        self._pool = pool
        self.sampler = sampler
        self.table = pool.new_table() if table is None else table
        weakref.finalize(self, pool.free, self.table)

    def fork(self) -> Self:
        """An independent copy, which shares pages."""
        forked = type(self)(self._pool, self.sampler.fork(), self._pool.fork(self.table))
        forked.tenant, forked.is_resident = self.tenant, self.is_resident
        return forked

    def snapshot(self) -> Any:
        """The current position."""
        return self.sampler.snapshot(), self.table.length

    def rollback(self, snapshot: Any) -> None:
        """Drop the tokens since the snapshot."""
        position, length = snapshot
        self.sampler.rollback(position)
        self._pool.truncate(self.table, length)

    def export(self) -> SamplerSnapshot:
        """The tokens and the number of draws, for migration."""
        return self.sampler.export()

    def load(self, exported: SamplerSnapshot) -> None:
        """Load an exported state into this new one. Raises OutOfPages."""
        self.sampler.load(exported)
        self._pool.extend(self.table, len(self.sampler.history))

    def evict(self) -> None:
        """Release the pages."""
        self._pool.truncate(self.table, 0)
        self.is_resident = False

    def restore(self) -> None:
        """Allocate the pages again. Raises OutOfPages."""
        self._pool.extend(self.table, len(self.sampler.history))
        self.is_resident = True


class SyntheticStore:
    """Page statistics of the KV cache, as of a `KVStore`."""

    prefix_queries = prefix_hits = moved_ahead = 0

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool

    def page_counts(self) -> tuple[int, int]:
        """Number of pages, used and in total."""
        return self.pool.count - self.pool.free_pages, self.pool.count


class _AnyAdapter:
    """Accepts requests with any adapter: it changes nothing."""

    def preload(self, folders: Mapping[str, str]) -> None:
        """Load nothing."""


class SyntheticDecoder:
    """Answers with `text`, token ids that it repeats, up to `output_tokens` of them."""

    attention_description: ClassVar[str] = ""
    nondeterminism: ClassVar[str] = ""
    ahead: ClassVar[None] = None
    speculation: ClassVar[None] = None
    adapters: ClassVar[_AnyAdapter] = _AnyAdapter()

    def __init__(
        self,
        pool: PagePool,
        *,
        text: Sequence[int],
        end_tokens: Sequence[int],
        vocabulary_size: int,
        grammar_tokens: Sequence[int],
        output_tokens: int,
    ) -> None:
        self.store = SyntheticStore(pool)
        self._text = tuple(text)
        self._end_tokens = tuple(end_tokens)
        self._output_tokens = output_tokens
        # Below the largest logit, in the order of token ids, so that each grammar has one answer.
        self._base_logits = -torch.arange(vocabulary_size, dtype=torch.float32) / vocabulary_size
        self._grammar_logits = self._base_logits.clone()
        for rank, token in enumerate((*self._end_tokens, *grammar_tokens)):
            self._grammar_logits[token] = LOGIT_MARGIN - rank

    def new_cache(self, vocabulary: Vocabulary | None) -> SyntheticKV:
        """Create an empty KV cache."""
        return SyntheticKV(self.store.pool, SamplerState(vocabulary))

    def restore(self, caches: Sequence[SyntheticKV]) -> None:
        """Restore evicted caches. Raises OutOfPages."""
        for cache in caches:
            cache.restore()

    def next_token(
        self,
        inputs: Tensor,
        caches: Sequence[SyntheticKV],
        params: Sequence[Sampling],
        layout: Layout,
        content_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Append the inputs of a ragged batch; return next tokens and logits. Unfinished rows get token 0.

        Without grammars, biases and log probabilities there are no logits.
        """
        self._reject_too_long(caches, params, layout.lengths)
        self._append(inputs if content_ids is None else content_ids, caches, layout.lengths)
        finished = [row for row in range(len(caches)) if row not in layout.unfinished]
        samplers, own_params = [caches[row].sampler for row in finished], [params[row] for row in finished]
        sampled = torch.zeros((len(caches), 1), dtype=torch.int64)
        if not any(map(_needs_logits, own_params)):
            for row, sampler in zip(finished, samplers, strict=True):
                if sampler.prompt_length is None:
                    sampler.start_generation()
                sampled[row] = self._next(sampler)
            return sampled, torch.zeros((len(caches), 1))
        logits = torch.zeros((len(caches), len(self._base_logits)))
        for row, sampler, sampling in zip(finished, samplers, own_params, strict=True):
            logits[row] = self._base_logits if sampling.grammar is None else self._grammar_logits
            if sampling.grammar is None:
                logits[row, self._next(sampler)] = LOGIT_MARGIN
        if finished:
            sampled[finished] = sample_tokens(logits[finished], own_params, samplers)
        return sampled, logits

    def hidden_states(self, inputs: Tensor, caches: Sequence[SyntheticKV], layout: Layout) -> Tensor:
        """Append the inputs; return synthetic hidden states."""
        self._append(inputs, caches, layout.lengths)
        return self.embed(inputs)

    def attend_only(self, embeddings: Tensor, caches: Sequence[SyntheticKV], layout: Layout) -> Tensor:  # noqa: ARG002
        """Return synthetic hidden states."""
        return self.embed(embeddings)

    def embed(self, tokens: Tensor) -> Tensor:
        """[tokens] to [tokens, size]; embeddings are returned unchanged."""
        return make_array("float32", (len(tokens), HIDDEN_SIZE)) if tokens.ndim == 1 else tokens

    def _next(self, sampler: SamplerState) -> int:
        """The next token of the text, or the end."""
        count = sampler.generated_count
        return self._end_tokens[0] if count >= self._output_tokens else self._text[count % len(self._text)]

    def _append(self, inputs: Tensor, caches: Sequence[SyntheticKV], lengths: Sequence[int]) -> None:
        pool = self.store.pool
        pool.require_free(sum(pool.pages_needed([cache.table for cache in caches], lengths)))
        for cache, part in zip(caches, inputs.split(list(lengths)), strict=True):
            pool.extend(cache.table, len(part))
            cache.sampler.append_tokens(part.tolist() if part.ndim == 1 else [0] * len(part))

    def _reject_too_long(
        self, caches: Sequence[SyntheticKV], params: Sequence[Sampling], lengths: Sequence[int]
    ) -> None:
        """Reject new requests whose prompt and `max_tokens` would not fit into all pages."""
        pool, errors = self.store.pool, dict[int, Exception]()
        for row, cache in enumerate(caches):
            if cache.sampler.prompt_length is None:
                positions = cache.table.length + lengths[row] + params[row].max_tokens - 1
                try:
                    pool.require_capacity(-(-positions // pool.page_size))
                except NeverFits as error:
                    errors[row] = error
        if errors:
            raise RowsFailed(errors)


def _needs_logits(sampling: Sampling) -> bool:
    is_restricted = sampling.grammar is not None or sampling.logit_bias or sampling.allowed_ranges
    return bool(is_restricted) or sampling.logprobs is not None
