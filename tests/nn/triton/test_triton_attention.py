"""The kernels compute what plain torch computes, for random ragged batches.

Every slot that no token was written to holds NaN, so that a read of another request's page, of a released page or past
the end of a request is seen in the output.
"""

import math
import random

import numpy as np
import pytest
import torch

from mstar.nn.kv.cache_dtype import FP8, to_cache_dtype
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.kv.paged_attention import attend_general, extend_caches, running
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.triton.triton_attention import PREFILL_TOKENS, TritonAttention, token_blocks

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
HALVES = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow))


class PagedRequests:
    """Caches of one layer whose pages Triton reads, with the complete keys and values of each of them."""

    def __init__(  # heads are (of queries, of keys), sizes (of a key, of a value)
        self,
        heads=(4, 2),
        sizes=(16, 16),
        *,
        page_size=4,
        window=0,
        dtype=torch.float32,
        splits_at=512,
        released=False,
        cache_dtype=None,
    ):
        self.heads, self.sizes, self.window, self.dtype = heads, sizes, window, dtype
        self.cache_dtype = cache_dtype or dtype
        backend = TritonAttention(splits_at)
        self.store = KVStore(PagePool(2048, page_size), 1, swap_bytes=1 << 20, backend=backend, dtype=cache_dtype)
        self.store.window = window if released else None
        for memory in self.store.layer(0, *(torch.zeros(1, heads[1], size, dtype=dtype) for size in sizes)):
            memory.fill_(math.nan)
        self.history = {}

    def new(self):
        cache = PagedKV(self.store, SamplerState())
        self.history[cache] = tuple(torch.zeros(self.heads[1], 0, size, dtype=self.dtype) for size in self.sizes)
        return cache

    def fork(self, cache):
        fork = cache.fork()
        self.history[fork] = self.history[cache]
        return fork

    def append(self, caches, counts, *, is_causal=True, softcap=0.0, sinks=None):
        """Append random tokens; return the attention of Triton and the expected one, [tokens, heads, size]."""
        batch = extend_caches(self.store, caches, counts, is_causal=is_causal)
        self.store.pool.check()
        self.mark_unused()
        (query_heads, heads), (size, value_size) = self.heads, self.sizes
        # The layout of a model: [tokens, heads, size], transposed.
        query, key, value = (
            torch.randn(1, sum(counts), *shape).to(self.dtype).transpose(1, 2)
            for shape in ((query_heads, size), (heads, size), (heads, value_size))
        )
        with running(batch):
            out = attend_general(query, key, value, 0, size**-0.5, self.window, softcap, sinks)[0]
        parts = zip(*(each[0].split(counts, 1) for each in (query, key, value)), strict=True)
        expected = [
            self._expected(cache, *part, is_causal, softcap, sinks) for cache, part in zip(caches, parts, strict=True)
        ]
        return out, torch.cat(expected).to(self.dtype)

    def mark_unused(self):
        used = [page for cache in self.history for page in cache.table.pages[cache.table.forgotten :]]
        slots = torch.ones(self.store.pool.count, dtype=torch.bool)
        slots[used] = False
        for memory in (*self.store.keys, *self.store.values):
            unused = slots.repeat_interleave(self.store.pool.page_size).nonzero().flatten()
            memory[unused] = torch.tensor(math.nan).to(memory.dtype)  # fp8 has no masked_fill

    def check(self, caches, counts, **rule):
        tolerance = TOLERANCES[self.dtype]
        torch.testing.assert_close(*self.append(caches, counts, **rule), rtol=tolerance, atol=tolerance)

    def _expected(self, cache, query, key, value, is_causal, softcap, sinks):  # noqa: PLR0917
        rounded = (to_cache_dtype(part, self.cache_dtype).to(self.dtype) for part in (key, value))
        keys, values = (torch.cat(pair, 1) for pair in zip(self.history[cache], rounded, strict=True))
        self.history[cache] = keys, values
        group, length, new = query.shape[0] // keys.shape[0], keys.shape[1], query.shape[1]
        keys, values = (each.double().repeat_interleave(group, 0) for each in (keys, values))
        scores = query.double() @ keys.mT * query.shape[-1] ** -0.5
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        positions = torch.arange(length)
        seen = torch.arange(length - new, length)[:, None] + 1 if is_causal else torch.full((new, 1), length)
        mask = positions < seen
        if self.window:
            mask &= positions >= seen - self.window
        scores = scores.masked_fill(~mask, -math.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, new, 1)], -1)
        return (scores.softmax(-1)[..., :length] @ values).transpose(0, 1)


def check_random_batches(seed, steps=6):
    """Requests of a random layer that join, decode, prefill in chunks, fork, roll back and are swapped out and in."""
    chosen = random.Random(seed)
    torch.manual_seed(seed)
    heads = chosen.choice([(4, 2), (3, 3), (6, 1), (6, 2), (20, 1)])
    sizes = chosen.choice([(16, 16), (8, 8), (20, 20), (24, 12)])
    window = chosen.choice([0, 0, 1, 5, 16, 70])
    requests = PagedRequests(
        heads,
        sizes,
        page_size=chosen.choice([1, 3, 4, 16]),
        window=window,
        dtype=chosen.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16]),
        splits_at=chosen.choice([512, 8, 30]),
        released=chosen.random() < 0.5 and window > 0,
    )
    softcap = chosen.choice([0.0, 0.0, 2.0])
    sinks = torch.randn(heads[0]) if chosen.random() < 0.4 else None
    caches = []
    for _ in range(steps):
        if len(caches) < 4:
            caches.append(requests.new())
        if caches and chosen.random() < 0.3 and caches[0].table.length:
            caches.append(requests.fork(caches[0]))
        cache = chosen.choice(caches)
        if cache.table.length and chosen.random() < 0.3:
            cache.evict()
            requests.mark_unused()
            cache.restore()
        batch = chosen.sample(caches, chosen.randint(1, len(caches)))
        is_decode = chosen.random() < 0.4
        counts = [1 if is_decode else chosen.choice([1, 2, 7, 33, 50]) for _ in batch]
        requests.check(batch, counts, softcap=softcap, sinks=sinks)


@pytest.mark.parametrize("seed", range(2))
def test_random_batches(seed):
    check_random_batches(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 30))
def test_more_random_batches(seed):
    check_random_batches(seed, steps=10)


@pytest.mark.parametrize("cache_dtype", [FP8, *(pytest.param(other, marks=pytest.mark.slow) for other in HALVES)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cache_of_another_dtype_has_rounded_values(dtype, cache_dtype):
    torch.manual_seed(0)
    requests = PagedRequests(dtype=dtype, cache_dtype=cache_dtype, splits_at=8, window=16)
    caches = [requests.new(), requests.new()]
    for counts in ([33, 7], [1, 1], [3, 9]):
        requests.check(caches, counts)
    assert requests.store.keys[0].dtype == cache_dtype


def test_tokens_that_see_all_positions():
    torch.manual_seed(0)
    requests = PagedRequests()
    caches = [requests.new(), requests.new()]
    requests.check(caches, [9, 3])
    requests.check(caches, [5, 40], is_causal=False)
    requests.check(caches, [1, 1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_long_request_is_split_in_decode(dtype, monkeypatch):
    torch.manual_seed(0)
    requests = PagedRequests(page_size=16, dtype=dtype, splits_at=40)
    caches = [requests.new(), requests.new(), requests.new()]
    requests.check(caches, [190, 3, 70])
    splits = []
    choose = TritonAttention._splits
    monkeypatch.setattr(TritonAttention, "_splits", lambda *given: splits.append(choose(*given)) or splits[-1])
    for sinks in (None, torch.randn(4)):
        requests.check(caches, [1, 1, 1], sinks=sinks)
    assert splits == [4, 4]


def test_keys_and_values_are_written_to_their_slots_only():
    torch.manual_seed(0)
    requests = PagedRequests(heads=(2, 2), sizes=(8, 20), page_size=3)
    caches = [requests.new(), requests.new()]
    requests.append(caches, [7, 18])
    requests.append(caches[::-1], [2, 1])
    for number, memory in enumerate((requests.store.keys[0], requests.store.values[0])):
        written = torch.zeros(len(memory), dtype=torch.bool)
        for cache in caches:
            places = requests.store.places(cache.table.pages, 0, cache.table.length)
            written[places] = True
            assert torch.equal(memory[places].transpose(0, 1), requests.history[cache][number])
        assert memory[~written].isnan().all()


def test_blocks_cover_every_token_once():
    for counts in ([1], [1, 1, 1], [32, 33, 1, 64, 100], [2] * 9):
        blocks = token_blocks(np.array(counts), PREFILL_TOKENS)
        owners = np.arange(len(counts)).repeat(counts)
        assert blocks[:, 2].max() <= PREFILL_TOKENS
        covered = [(request, token) for request, first, count in blocks for token in range(first, first + count)]
        assert covered == list(zip(owners, range(sum(counts)), strict=True))
