"""Decoder: a transformers model and its paged memory, for batches of requests.

This is what stands behind `CausalLM` where torch is. It reads what requests bring and chooses their tokens; which
requests share a batch, and when, is decided elsewhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor

from mstar.errors import LoadError, NeverFits, RowsFailed
from mstar.nn import native
from mstar.nn.compile.graph_capture import eager_forward, flatten
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.kv.paged_attention import PAGED_ATTENTION, AttentionBatch, extend_caches, running
from mstar.nn.lm.grammar import Vocabulary
from mstar.nn.lm.sampler import SamplerState, sample_tokens
from mstar.requests import Sampling
from mstar.walk.batching import Layout

_DETERMINISTIC_TOKENS = 64
"""How many tokens every forward has, if all are to have the same size."""
_RECOMPUTE_CHUNK_TOKENS = 512
"""How many positions are read at once when a cache that was dropped is read again."""
_MIN_SHARED_POSITIONS = 64
"""So many positions must be spared by another forward before it is run."""


class SlowPath(UserWarning):
    """A network is run by its library's own code, because its steps could not be recorded."""


class Decoder:
    """A network that attends over pages, and the pages."""

    attention: ClassVar[str] = PAGED_ATTENTION

    def __init__(
        self, network: Any, pool: PagePool, *, swap_bytes: int, is_deterministic: bool, is_int8: bool = False
    ) -> None:
        network = network.eval().requires_grad_(requires_grad=False)
        network.config._attn_implementation = self.attention
        config = network.config.get_text_config()
        self.store = KVStore(pool, config.num_hidden_layers, swap_bytes=swap_bytes)
        self._embed = network.get_input_embeddings()
        self._is_deterministic = is_deterministic
        wants = " and ".join(["deterministic"] * is_deterministic + ["int8"] * is_int8)
        if wants and not native.is_native(self._embed.weight.dtype, self._embed.weight.device):
            fix = "install g++, and use float32 or bfloat16"
            raise LoadError(f"{wants} runs need the fused kernels, which are not there\n  fix: {fix}")
        self._forward, self.store.window = self._captured(network, is_int8=is_int8)
        self._allocate_memory()

    def _captured(self, network: Any, *, is_int8: bool) -> tuple[Callable[..., Any], int | None]:
        """The forward of a network, and how many positions it sees if that is limited."""
        try:
            return flatten(network, is_int8=is_int8)
        except LoadError:
            raise
        except Exception as error:  # whatever the exporter cannot do, the library can
            if is_int8:
                said = f"{type(network).__name__} cannot run in int8, because its steps could not be recorded: {error}"
                raise LoadError(f"{said}\n  fix: leave int8 out") from error
            said = f"{type(network).__name__} is run by its library, which is slower: {str(error).splitlines()[0]}"
            warnings.warn(f"{said}\n  fix: none is needed", SlowPath, stacklevel=3)
            return eager_forward(network), None

    def _allocate_memory(self) -> None:
        """Run one token, so that every layer takes the memory for all of its pages now, and not from a request."""
        cache = self.new_cache(None)
        self.hidden_states(torch.tensor([0]), [cache], Layout(1, (1,)))
        cache.free()

    def new_cache(self, vocabulary: Vocabulary | None) -> PagedKV:
        """A cache with no pages yet."""
        return PagedKV(self.store, SamplerState(vocabulary))

    def embed(self, tokens: Tensor) -> Tensor:
        """[tokens] to [tokens, size]; embeddings are what they are."""
        return self._embed(tokens) if tokens.ndim == 1 else tokens

    def _embed_inputs(self, given: Tensor, caches: Sequence[PagedKV], counts: Sequence[int]) -> Tensor:  # noqa: ARG002
        """The embeddings of what these caches read, which have so many positions each."""
        return self.embed(given)

    def _lineage_embeddings(self, cache: PagedKV) -> Tensor:
        """The embeddings of everything that a cache has read."""
        return torch.cat([self.embed(part) for part in cache.lineage()])

    # ---------------------------------------------------------------- what requests ask for
    @torch.inference_mode()
    def next_token(
        self,
        given: Tensor,
        caches: list[PagedKV],
        params: Sequence[Sampling],
        layout: Layout,
        content_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Read what is given for all caches, joined; the token that follows for each, and its logits.

        For rows that are not finished nothing is chosen: their token is 0. Embeddings with `numbers` are shared and
        count as tokens do.
        """
        return self.next_token_with_hidden(given, caches, params, layout, content_ids)[:2]

    @torch.inference_mode()
    def next_token_with_hidden(
        self,
        given: Tensor,
        caches: list[PagedKV],
        params: Sequence[Sampling],
        layout: Layout,
        content_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same, and the hidden state of each position, but for those whose pages others had filled."""
        self._reject_too_long(caches, params, layout.lengths)
        self._record_inputs(given if content_ids is None else content_ids, caches, layout.lengths)
        if content_ids is not None:
            for cache, part in zip(caches, given.split(list(layout.lengths)), strict=True):
                cache.append_embeddings(part.clone(), len(part))
        given, counts = self._skip_cached_prefix(given, caches, layout.lengths)
        batch = extend_caches(self.store, caches, counts)
        last = torch.tensor([end - 1 for end in accumulate(counts)])
        if not layout.unfinished:
            logits, hidden = self._run(self._embed_inputs(given, caches, counts), batch, last)
            self._share_full_pages(caches, counts)
            return sample_tokens(logits, params, [cache.sampler for cache in caches]), logits, hidden
        finished = [row for row in range(len(caches)) if row not in layout.unfinished]
        logits, hidden = self._run(self._embed_inputs(given, caches, counts), batch, last[finished])
        self._share_full_pages(caches, counts)
        chosen = torch.zeros((len(caches), 1), dtype=torch.int64)
        every = logits.new_zeros((len(caches), logits.shape[1]))
        if finished:
            own, choosers = [params[row] for row in finished], [caches[row].sampler for row in finished]
            chosen[finished] = sample_tokens(logits, own, choosers)
            every[finished] = logits
        return chosen, every, hidden

    @torch.inference_mode()
    def hidden_states(self, given: Tensor, caches: list[PagedKV], layout: Layout) -> Tensor:
        """Read what is given for all caches, joined; the hidden state of each position."""
        self._record_inputs(given, caches, layout.lengths)
        batch = extend_caches(self.store, caches, layout.lengths)
        hidden = self._run(self._embed_inputs(given, caches, layout.lengths), batch, torch.tensor([0]))[1]
        self._share_full_pages(caches, layout.lengths)
        return hidden

    @torch.inference_mode()
    def attend_only(self, embeddings: Tensor, caches: list[PagedKV], layout: Layout) -> Tensor:
        """Hidden states of embeddings that see the caches and each other; the caches stay as they are."""
        forks = [cache.fork() for cache in caches]
        try:
            batch = extend_caches(self.store, forks, layout.lengths, is_causal=False)
            return self._run(embeddings, batch, torch.tensor([0]))[1]
        finally:
            for fork in forks:
                fork.free()

    @torch.inference_mode()
    def restore(self, caches: Sequence[PagedKV]) -> None:
        """Give caches that left their pages again, with what was in them."""
        for cache in caches:
            is_dropped = cache.is_dropped
            cache.restore()
            if is_dropped:
                self._recompute(cache)

    def _reject_too_long(self, caches: Sequence[PagedKV], params: Sequence[Sampling], lengths: Sequence[int]) -> None:
        """Refuse those that begin now and could not write all they wish for if they had every page."""
        if self.store.window is not None:
            return
        pool, errors = self.store.pool, dict[int, Exception]()
        for row in [row for row, cache in enumerate(caches) if not cache.sampler.has_started]:
            positions = caches[row].table.length + lengths[row] + params[row].max_tokens - 1
            try:
                pool.require_capacity(-(-positions // pool.page_size) + self._extra_pages(caches[row]))
            except NeverFits as error:
                errors[row] = error
        if errors:
            raise RowsFailed(errors)

    def _extra_pages(self, cache: PagedKV) -> int:  # noqa: ARG002 - a decoder by itself has none
        """How many pages a cache has besides those of what it reads."""
        return 0

    def _record_inputs(self, given: Tensor, caches: Sequence[PagedKV], lengths: Sequence[int]) -> None:
        """Tell the caches what they read."""
        if given.ndim > 1:
            for cache, part in zip(caches, given.split(list(lengths)), strict=True):
                cache.append_embeddings(part.clone())  # a view would keep the whole batch
            return
        tokens, first = given.tolist(), 0
        for cache, length in zip(caches, lengths, strict=True):
            cache.append_tokens(tokens[first : first + length])
            first += length

    def _skip_cached_prefix(
        self, given: Tensor, caches: Sequence[PagedKV], lengths: Sequence[int]
    ) -> tuple[Tensor, list[int]]:
        """What is left to read, when caches took the pages that others filled with the same.

        Of those that would now fill pages with the same, one does so first, and the others take them.
        """
        several = {row: caches[row] for row, length in enumerate(lengths) if length > 1}
        if not several:
            return given, list(lengths)
        parts = list(given.split(list(lengths)))
        while True:
            for row, cache in several.items():
                parts[row] = parts[row][self.store.attach_cached(cache) :]
            ahead = _shared_prefix_leaders(several)
            if not ahead:
                return torch.cat(parts), [len(part) for part in parts]
            leaders, counts = [caches[row] for row in ahead], list(ahead.values())
            batch = extend_caches(self.store, leaders, counts)
            own = torch.cat([parts[row][:count] for row, count in ahead.items()])
            self._run(self._embed_inputs(own, leaders, counts), batch, torch.tensor([0]))
            self._share_full_pages(leaders, counts)
            for row, count in ahead.items():
                parts[row] = parts[row][count:]

    def _share_full_pages(self, caches: Sequence[PagedKV], counts: Sequence[int]) -> None:
        """Let others have the pages that were filled by this step."""
        size = self.store.pool.page_size
        for cache, count in zip(caches, counts, strict=True):
            if cache.table.length % size < count:
                cache.share_full_pages()

    def _recompute(self, cache: PagedKV) -> None:
        """Fill the pages of a cache from its lineage."""
        length = cache.table.length
        embeddings = self._lineage_embeddings(cache)
        self.store.pool.truncate(cache.table, 0)
        for first in range(0, length, _RECOMPUTE_CHUNK_TOKENS):
            part = embeddings[first : first + _RECOMPUTE_CHUNK_TOKENS]
            self._run(part, extend_caches(self.store, [cache], [len(part)]), torch.tensor([0]))

    # ---------------------------------------------------------------- the forward
    def _run(self, embeddings: Tensor, batch: AttentionBatch, last: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the tokens numbered `last`, and all hidden states."""
        if self._is_deterministic:
            return self._run_fixed(embeddings, batch, last)
        if not len(last):
            last = torch.tensor([0])  # a network that was recorded gives at least one
        with running(batch):
            return self._forward(embeddings[None], batch.positions[None], last)

    def _run_fixed(self, embeddings: Tensor, batch: AttentionBatch, last: Tensor) -> tuple[Tensor, Tensor]:
        """The same in forwards of one size, each token attending for itself, so that no result depends on its company.

        Matrix products round in an order that depends on how many rows they have, and on nothing else.
        """
        logits, hidden = [], []
        for first in range(0, len(embeddings), _DETERMINISTIC_TOKENS):
            part = embeddings[first : first + _DETERMINISTIC_TOKENS]
            own = last[(last >= first) & (last < first + _DETERMINISTIC_TOKENS)] - first
            with running(batch.part(first, first + len(part))):
                given, positions = _pad_to_fixed(part), _pad_to_fixed(batch.positions[first : first + len(part)])
                scores, states = self._forward(given[None], positions[None], _pad_to_fixed(own))
            logits.append(scores[: len(own)])
            hidden.append(states[: len(part)])
        return torch.cat(logits), torch.cat(hidden)


def _pad_to_fixed(x: Tensor) -> Tensor:
    """x with zeros behind it, up to the size that every forward has."""
    return torch.cat([x, x.new_zeros((_DETERMINISTIC_TOKENS - len(x), *x.shape[1:]))])


def _shared_prefix_leaders(caches: Mapping[int, PagedKV]) -> dict[int, int]:
    """Which of these caches read so many positions before the others, because some are to read the same."""
    filled, ahead, spared = dict[bytes, int](), dict[int, int](), 0
    for row, cache in caches.items():
        keys = cache.unfilled_page_keys()
        leader = filled.get(keys[0]) if keys else None
        if leader is None:
            filled |= dict.fromkeys(keys, row)
            continue
        size, same = cache.store.pool.page_size, sum(filled.get(key) == leader for key in keys)
        end = (cache.table.length // size + same) * size
        ahead[leader] = max(ahead.get(leader, 0), end - caches[leader].table.length)
        spared += same * size
    return ahead if spared >= _MIN_SHARED_POSITIONS else {}
