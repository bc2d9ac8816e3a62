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

from mstar.errors import LoadError, RowsFailed
from mstar.nn import native
from mstar.nn.chooser import Chooser, choose_tokens
from mstar.nn.flat import as_written, flatten
from mstar.nn.grammar import Vocabulary
from mstar.nn.paged import PAGED, Batch, extend, running
from mstar.nn.pages import NeverFits, Pool
from mstar.nn.sampling import Sampling
from mstar.nn.store import PagedKV, Store
from mstar.walk.batching import Layout

_FIXED = 64
"""How many tokens every forward has, if all are to have the same size."""
_PIECE = 512
"""How many positions are read at once when a cache that was dropped is read again."""
_WORTHWHILE = 64
"""So many positions must be spared by another forward before it is run."""


class SlowPath(UserWarning):
    """A network is run by its library's own code, because its steps could not be recorded."""


class Decoder:
    """A network that attends over pages, and the pages."""

    attention: ClassVar[str] = PAGED

    def __init__(self, network: Any, pool: Pool, *, swap: int, is_deterministic: bool, is_int8: bool = False) -> None:
        network = network.eval().requires_grad_(requires_grad=False)
        network.config._attn_implementation = self.attention
        config = network.config.get_text_config()
        self.store = Store(pool, config.num_hidden_layers, swap=swap)
        self._embed = network.get_input_embeddings()
        self._is_deterministic = is_deterministic
        wants = " and ".join(["deterministic"] * is_deterministic + ["int8"] * is_int8)
        if wants and not native.is_native(self._embed.weight.dtype, self._embed.weight.device):
            fix = "install g++, and use float32 or bfloat16"
            raise LoadError(f"{wants} runs need the fused kernels, which are not there\n  fix: {fix}")
        self._forward, self.store.window = self._recorded(network, is_int8=is_int8)
        self._take_memory()

    def _recorded(self, network: Any, *, is_int8: bool) -> tuple[Callable[..., Any], int | None]:
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
            return as_written(network), None

    def _take_memory(self) -> None:
        """Run one token, so that every layer takes the memory for all of its pages now, and not from a request."""
        cache = self.new_cache(None)
        self.read(torch.tensor([0]), [cache], Layout(1, (1,)))
        cache.free()

    def new_cache(self, vocabulary: Vocabulary | None) -> PagedKV:
        """A cache with no pages yet."""
        return PagedKV(self.store, Chooser(vocabulary))

    def embed(self, tokens: Tensor) -> Tensor:
        """[tokens] to [tokens, size]; embeddings are what they are."""
        return self._embed(tokens) if tokens.ndim == 1 else tokens

    def _embedded(self, given: Tensor, caches: Sequence[PagedKV], counts: Sequence[int]) -> Tensor:  # noqa: ARG002
        """The embeddings of what these caches read, which have so many positions each."""
        return self.embed(given)

    def _relived(self, cache: PagedKV) -> Tensor:
        """The embeddings of everything that a cache has read."""
        return torch.cat([self.embed(part) for part in cache.lineage()])

    # ---------------------------------------------------------------- what requests ask for
    @torch.inference_mode()
    def next(
        self,
        given: Tensor,
        caches: list[PagedKV],
        wishes: Sequence[Sampling],
        layout: Layout,
        numbers: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Read what is given for all caches, joined; the token that follows for each, and its logits.

        For rows that are not finished nothing is chosen: their token is 0. Embeddings with `numbers` are shared and
        count as tokens do.
        """
        return self.next_read(given, caches, wishes, layout, numbers)[:2]

    @torch.inference_mode()
    def next_read(
        self,
        given: Tensor,
        caches: list[PagedKV],
        wishes: Sequence[Sampling],
        layout: Layout,
        numbers: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same, and the hidden state of each position, but for those whose pages others had filled."""
        self._refuse_too_long(caches, wishes, layout.lengths)
        self._note(given if numbers is None else numbers, caches, layout.lengths)
        if numbers is not None:
            for cache, part in zip(caches, given.split(list(layout.lengths)), strict=True):
                cache.read_embeddings(part.clone(), len(part))
        given, counts = self._without_known(given, caches, layout.lengths)
        batch = extend(self.store, caches, counts)
        last = torch.tensor([end - 1 for end in accumulate(counts)])
        if not layout.unfinished:
            logits, hidden = self._run(self._embedded(given, caches, counts), batch, last)
            self._keep(caches, counts)
            return choose_tokens(logits, wishes, [cache.chooser for cache in caches]), logits, hidden
        finished = [row for row in range(len(caches)) if row not in layout.unfinished]
        logits, hidden = self._run(self._embedded(given, caches, counts), batch, last[finished])
        self._keep(caches, counts)
        chosen = torch.zeros((len(caches), 1), dtype=torch.int64)
        every = logits.new_zeros((len(caches), logits.shape[1]))
        if finished:
            own, choosers = [wishes[row] for row in finished], [caches[row].chooser for row in finished]
            chosen[finished] = choose_tokens(logits, own, choosers)
            every[finished] = logits
        return chosen, every, hidden

    @torch.inference_mode()
    def read(self, given: Tensor, caches: list[PagedKV], layout: Layout) -> Tensor:
        """Read what is given for all caches, joined; the hidden state of each position."""
        self._note(given, caches, layout.lengths)
        batch = extend(self.store, caches, layout.lengths)
        hidden = self._run(self._embedded(given, caches, layout.lengths), batch, torch.tensor([0]))[1]
        self._keep(caches, layout.lengths)
        return hidden

    @torch.inference_mode()
    def look(self, embeddings: Tensor, caches: list[PagedKV], layout: Layout) -> Tensor:
        """Hidden states of embeddings that see the caches and each other; the caches stay as they are."""
        forks = [cache.fork() for cache in caches]
        try:
            batch = extend(self.store, forks, layout.lengths, is_causal=False)
            return self._run(embeddings, batch, torch.tensor([0]))[1]
        finally:
            for fork in forks:
                fork.free()

    @torch.inference_mode()
    def bring_back(self, caches: Sequence[PagedKV]) -> None:
        """Give caches that left their pages again, with what was in them."""
        for cache in caches:
            is_dropped = cache.is_dropped
            cache.come_back()
            if is_dropped:
                self._read_again(cache)

    def _refuse_too_long(self, caches: Sequence[PagedKV], wishes: Sequence[Sampling], lengths: Sequence[int]) -> None:
        """Refuse those that begin now and could not write all they wish for if they had every page."""
        if self.store.window is not None:
            return
        pool, errors = self.store.pool, dict[int, Exception]()
        for row in [row for row, cache in enumerate(caches) if not cache.chooser.has_begun]:
            positions = caches[row].table.length + lengths[row] + wishes[row].max_tokens - 1
            try:
                pool.must_hold(-(-positions // pool.page_size) + self._pages_beside(caches[row]))
            except NeverFits as error:
                errors[row] = error
        if errors:
            raise RowsFailed(errors)

    def _pages_beside(self, cache: PagedKV) -> int:  # noqa: ARG002 - a decoder by itself has none
        """How many pages a cache has besides those of what it reads."""
        return 0

    def _note(self, given: Tensor, caches: Sequence[PagedKV], lengths: Sequence[int]) -> None:
        """Tell the caches what they read."""
        if given.ndim > 1:
            for cache, part in zip(caches, given.split(list(lengths)), strict=True):
                cache.read_embeddings(part.clone())  # a view would keep the whole batch
            return
        tokens, first = given.tolist(), 0
        for cache, length in zip(caches, lengths, strict=True):
            cache.read(tokens[first : first + length])
            first += length

    def _without_known(
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
                parts[row] = parts[row][self.store.adopt(cache) :]
            ahead = _ahead(several)
            if not ahead:
                return torch.cat(parts), [len(part) for part in parts]
            leaders, counts = [caches[row] for row in ahead], list(ahead.values())
            batch = extend(self.store, leaders, counts)
            own = torch.cat([parts[row][:count] for row, count in ahead.items()])
            self._run(self._embedded(own, leaders, counts), batch, torch.tensor([0]))
            self._keep(leaders, counts)
            for row, count in ahead.items():
                parts[row] = parts[row][count:]

    def _keep(self, caches: Sequence[PagedKV], counts: Sequence[int]) -> None:
        """Let others have the pages that were filled by this step."""
        size = self.store.pool.page_size
        for cache, count in zip(caches, counts, strict=True):
            if cache.table.length % size < count:
                cache.keep()

    def _read_again(self, cache: PagedKV) -> None:
        """Fill the pages of a cache from its lineage."""
        length = cache.table.length
        embeddings = self._relived(cache)
        self.store.pool.truncate(cache.table, 0)
        for first in range(0, length, _PIECE):
            part = embeddings[first : first + _PIECE]
            self._run(part, extend(self.store, [cache], [len(part)]), torch.tensor([0]))

    # ---------------------------------------------------------------- the forward
    def _run(self, embeddings: Tensor, batch: Batch, last: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the tokens numbered `last`, and all hidden states."""
        if self._is_deterministic:
            return self._run_fixed(embeddings, batch, last)
        if not len(last):
            last = torch.tensor([0])  # a network that was recorded gives at least one
        with running(batch):
            return self._forward(embeddings[None], batch.positions[None], last)

    def _run_fixed(self, embeddings: Tensor, batch: Batch, last: Tensor) -> tuple[Tensor, Tensor]:
        """The same in forwards of one size, each token attending for itself, so that no result depends on its company.

        Matrix products round in an order that depends on how many rows they have, and on nothing else.
        """
        logits, hidden = [], []
        for first in range(0, len(embeddings), _FIXED):
            part = embeddings[first : first + _FIXED]
            own = last[(last >= first) & (last < first + _FIXED)] - first
            with running(batch.part(first, first + len(part))):
                given, positions = _filled(part), _filled(batch.positions[first : first + len(part)])
                scores, states = self._forward(given[None], positions[None], _filled(own))
            logits.append(scores[: len(own)])
            hidden.append(states[: len(part)])
        return torch.cat(logits), torch.cat(hidden)


def _filled(x: Tensor) -> Tensor:
    """x with zeros behind it, up to the size that every forward has."""
    return torch.cat([x, x.new_zeros((_FIXED - len(x), *x.shape[1:]))])


def _ahead(caches: Mapping[int, PagedKV]) -> dict[int, int]:
    """Which of these caches read so many positions before the others, because some are to read the same."""
    filled, ahead, spared = dict[bytes, int](), dict[int, int](), 0
    for row, cache in caches.items():
        keys = cache.to_fill()
        leader = filled.get(keys[0]) if keys else None
        if leader is None:
            filled |= dict.fromkeys(keys, row)
            continue
        size, same = cache.store.pool.page_size, sum(filled.get(key) == leader for key in keys)
        end = (cache.table.length // size + same) * size
        ahead[leader] = max(ahead.get(leader, 0), end - caches[leader].table.length)
        spared += same * size
    return ahead if spared >= _WORTHWHILE else {}
