"""Attention with a sliding window reads no page that was released, for all window sizes, page sizes and offsets.

Every slot that no request uses holds large values, and released pages are used by other requests. Attention that reads
one of them differs from attention over the complete history.
"""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from mstar.nn import native
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.kv.paged_attention import attend_running, extend_caches, running
from mstar.nn.lm.sampler_state import SamplerState

HEADS, KEY_HEADS, SIZE = 2, 1, 8
WINDOWS = range(1, 10)
PROMPTS = range(1, 14)
CHUNKS = range(1, 8)
DECODE_STEPS = 6
STALE = 50.0
"""Value of every slot that no request uses. As a key it wins the softmax, as a value it is seen in the output."""


class Windowed:
    """A store with one layer, and the complete keys and values of each of its caches."""

    def __init__(self, window, page_size, dtype):
        self.store = KVStore(PagePool(512, page_size), 1, swap_bytes=1 << 20)
        self.store.window, self.dtype = window, dtype
        self.history = {}

    def new(self):
        cache = PagedKV(self.store, SamplerState())
        empty = torch.zeros(KEY_HEADS, 0, SIZE, dtype=self.dtype)
        self.history[cache] = empty, empty
        return cache

    def append(self, caches, counts):
        """Append tokens to caches; return their attention and the expected one, [tokens, heads, size]."""
        batch = extend_caches(self.store, caches, counts)
        self.store.pool.check()
        self.mark_unused()
        query, key, value = (
            torch.randn(1, heads, sum(counts), SIZE, dtype=self.dtype) for heads in (HEADS, KEY_HEADS, KEY_HEADS)
        )
        with running(batch):
            out = attend_running(query, key, value, 0, SIZE**-0.5, self.store.window)[0]
        parts = zip(*(each[0].split(counts, 1) for each in (query, key, value)), strict=True)
        expected = [self._expected(cache, *part) for cache, part in zip(caches, parts, strict=True)]
        return out, torch.cat(expected)

    def mark_unused(self):
        """Overwrite all slots that no cache uses."""
        used = [page for cache in self.history for page in cache.table.pages[cache.table.forgotten :]]
        slots = torch.ones(self.store.pool.count, dtype=torch.bool)
        slots[used] = False
        slots = slots.repeat_interleave(self.store.pool.page_size)
        for memory in (*self.store.keys, *self.store.values):
            memory[slots[: len(memory)]] = STALE

    def swap(self, cache):
        """Swap a cache out and in."""
        cache.evict()
        self.mark_unused()
        cache.restore()
        return cache

    def move(self, cache):
        """Export a cache, free it, and load it into a new one."""
        exported = cache.export()
        cache.free()
        moved = PagedKV(self.store, SamplerState())
        self.history[moved] = self.history.pop(cache)
        self.mark_unused()
        moved.load(exported)
        return moved

    def _expected(self, cache, query, key, value):
        keys, values = (torch.cat(pair, 1) for pair in zip(self.history[cache], (key, value), strict=True))
        self.history[cache] = keys, values
        length, new = keys.shape[1], query.shape[1]
        own, positions = torch.arange(length - new, length)[:, None], torch.arange(length)
        mask = (positions <= own) & (positions > own - self.store.window)
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True).transpose(0, 1)


@pytest.fixture(params=["native", "torch"])
def dtype(request):
    """The fused kernels have no float64, so that torch attends."""
    dtype = torch.float32 if request.param == "native" else torch.float64
    if native.is_native(dtype, torch.device("cpu")) != (request.param == "native"):
        pytest.skip("the fused kernels are not built")
    return dtype


@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
def test_decoding_after_every_prompt_length(page_size, dtype):
    torch.manual_seed(0)
    for window in WINDOWS:
        memory = Windowed(window, page_size, dtype)
        caches = [memory.new() for _ in PROMPTS]
        torch.testing.assert_close(*memory.append(caches, [*PROMPTS]))
        for _ in range(DECODE_STEPS):
            torch.testing.assert_close(*memory.append(caches, [1] * len(caches)))


@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
def test_chunks_of_a_prompt_of_every_size(page_size, dtype):
    torch.manual_seed(0)
    for window in WINDOWS:
        memory = Windowed(window, page_size, dtype)
        caches = [memory.new() for _ in CHUNKS]
        for _ in range(4):
            torch.testing.assert_close(*memory.append(caches, [*CHUNKS]))


def test_a_long_chunk_after_a_short_one(dtype):
    """It attends by matrix, and not token by token."""
    torch.manual_seed(0)
    for window in WINDOWS:
        memory = Windowed(window, 4, dtype)
        caches = [memory.new(), memory.new()]
        for counts in ([11, 1], [60, 1], [1, 70], [1, 1]):
            torch.testing.assert_close(*memory.append(caches, counts))


@pytest.mark.parametrize("page_size", [1, 3, 4])
def test_a_rollback_finds_the_pages_that_it_needs(page_size, dtype):
    """A chunk that failed is rolled back and runs again."""
    torch.manual_seed(0)
    for window in WINDOWS:
        memory = Windowed(window, page_size, dtype)
        caches = [memory.new() for _ in CHUNKS]
        for _ in range(3):
            snapshots, before = [cache.snapshot() for cache in caches], {**memory.history}
            memory.append(caches, [*CHUNKS])
            for cache, snapshot in zip(caches, snapshots, strict=True):
                cache.rollback(snapshot)
            memory.history = before
            torch.testing.assert_close(*memory.append(caches, [3] * len(caches)))


@pytest.mark.parametrize("page_size", [1, 3, 4])
@pytest.mark.parametrize("is_moved", [False, True], ids=["swapped", "migrated"])
def test_a_restored_cache_has_the_pages_that_it_needs(page_size, is_moved, dtype):
    torch.manual_seed(0)
    for window in WINDOWS:
        memory = Windowed(window, page_size, dtype)
        caches = [memory.new() for _ in PROMPTS]
        memory.append(caches, [*PROMPTS])
        caches = [memory.move(cache) if is_moved else memory.swap(cache) for cache in caches]
        for _ in range(3):
            torch.testing.assert_close(*memory.append(caches, [1] * len(caches)))
