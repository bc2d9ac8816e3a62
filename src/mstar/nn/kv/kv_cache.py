"""Paged KV cache: storage of keys and values, per-request caches, eviction (swap or drop), export and prefix keys.

`mstar.nn.kv.page_pool` allocates the pages, `mstar.nn.kv.paged_attention` reads them. An evicted cache is swapped out
to other memory, or dropped and later recomputed by its component (preemption with swap or recompute). Which cache to
evict is decided by the engine.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from mstar.errors import LoadError, OutOfPages
from mstar.nn.kv.attention_backend import AttentionBackend
from mstar.nn.kv.exported_kv import ExportedKV, ExportedPages
from mstar.nn.kv.guess import Guess
from mstar.nn.kv.page_pool import PagePool, PageTable
from mstar.nn.kv.page_rows import PageRows
from mstar.nn.kv.page_table_matrix import PageTableMatrix
from mstar.nn.kv.prefix_pages import last_key, page_keys, prefix_namespace, share_pages
from mstar.nn.kv.rank_shards import join_shards, own_shard
from mstar.nn.kv.recurrent_state import RecurrentStates, Slot
from mstar.nn.kv.torch_attention import TORCH_ATTENTION
from mstar.nn.lm.adapters.low_rank import LoadedAdapter
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.ranks import Rank
from mstar.nn.staging import new_export, to_host
from mstar.requests import Adapter
from mstar.walk.states import KV

MIN_SENT_AHEAD = 64
"""Minimum number of positions that are sent while the rest of a cache is computed."""


def _zeros_like_rows(row: Tensor, positions: int, dtype: torch.dtype) -> Tensor:
    """Zeros for this number of rows. On a CPU the kernel provides the memory when it is first written."""
    shape = (positions, *row.shape[1:])
    size = prod(shape) * dtype.itemsize
    if row.device.type != "cpu" or not size:
        return row.new_zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class KVStore:
    """Keys and values of all layers of one component in pages, with the page table of all requests."""

    def __init__(
        self,
        pool: PagePool,
        layers: int,
        *,
        swap_bytes: int,
        states: RecurrentStates | None = None,
        backend: AttentionBackend = TORCH_ATTENTION,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.pool = pool
        self.dtype = dtype
        """Dtype of the keys and values; None for that of the network."""
        self.backend = backend
        """What reads and writes the pages."""
        self.states = states
        """Recurrent states of all requests, if the network has recurrent layers."""
        self.swap_bytes = swap_bytes
        """Free bytes of swap space for evicted caches."""
        self.load_adapter: Callable[[Adapter], LoadedAdapter] | None = None
        """Loads the adapter of an exported cache; None for a store of trial runs."""
        self.rank: Rank | None = None
        """The rank whose heads are stored; None for all heads."""
        self.window: int | None = None
        """Sliding window of the attention, if every layer has one: pages before it are released."""
        self.keys: list[Tensor] = [torch.empty(0)] * layers
        self.values: list[Tensor] = [torch.empty(0)] * layers
        self.page_table = PageTableMatrix()
        self._cross_attention: KVStore | None = None
        """Store for the keys and values of encoder states, if they have pages of their own."""
        self.prefix_queries = 0
        """Positions of prompts that were looked up in the prefix cache, since the start."""
        self.prefix_hits = 0
        """Those of them that were attached from it instead of computed."""
        self.moved_ahead = 0
        """Positions of loaded caches that another worker had sent before, since the start."""

    @property
    def cross_attention(self) -> KVStore:
        """Store for the keys and values of encoder states: this one, unless they have pages of their own."""
        return self if self._cross_attention is None else self._cross_attention

    def separate_cross_attention(self, pages_per_cross_page: int) -> None:
        """Give encoder states their own pages, one for this number of others, as their heads differ. 0 gives none."""
        if pages_per_cross_page:
            pool = PagePool(-(-self.pool.count // pages_per_cross_page), self.pool.page_size)
            self.swap_bytes //= 2
            layers, swap_bytes = len(self.keys), self.swap_bytes
            self._cross_attention = KVStore(pool, layers, swap_bytes=swap_bytes, backend=self.backend, dtype=self.dtype)

    @property
    def device(self) -> torch.device:
        """Device of the keys and values."""
        return next((memory.device for memory in self._memory), torch.device("cpu"))

    @property
    def has_prefix_cache(self) -> bool:
        """Whether requests share pages. Not if pages are released, or if a request needs its recurrent states too."""
        return self.window is None and self.states is None

    @property
    def keeps_sent_pages(self) -> bool:
        """Whether pages can be sent ahead. Not if each rank has a part of them."""
        return self.has_prefix_cache and self.rank is None

    def page_counts(self) -> tuple[int, int]:
        """Number of pages, used and in total, those for encoder states included."""
        pools = {self.pool, self.cross_attention.pool}
        return sum(pool.count - pool.free_pages for pool in pools), sum(pool.count for pool in pools)

    @property
    def _memory(self) -> list[Tensor]:
        """Keys and values of the layers with attention."""
        return [memory for memory in (*self.keys, *self.values) if memory.numel()]

    @property
    def position_bytes(self) -> int:
        """Bytes of the keys and values of one position, all layers together. They are allocated before."""
        return sum(memory[0].numel() * memory.element_size() for memory in self._memory)

    @property
    def head_bytes(self) -> list[tuple[int, int]]:
        """Heads, and bytes of a head, of the keys and the values of each layer."""
        return [(memory.shape[1], memory[0, 0].numel() * memory.element_size()) for memory in self._memory]

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer as [positions, heads, size], allocated with the shape of the first ones."""
        if not self.keys[index].numel():
            positions = self.pool.count * self.pool.page_size
            self.keys[index] = _zeros_like_rows(key, positions, self.dtype or key.dtype)
            self.values[index] = _zeros_like_rows(value, positions, self.dtype or value.dtype)
        return self.keys[index], self.values[index]

    # ---------------------------------------------------------------- caches
    def attach_cached(self, cache: PagedKV) -> int:
        """Attach pages of the prefix cache that match the next inputs of a cache; return the number of positions."""
        before = cache.table.length
        self.pool.attach_cached(cache.table, cache.unfilled_page_keys())
        if cache._page_keys is not None and self.has_prefix_cache:
            size, history, namespace = (
                self.pool.page_size,
                cache.sampler.history,
                prefix_namespace(cache.tenant, cache.adapter),
            )
            start = cache.table.length // size * size
            parent = last_key(namespace, page_keys(namespace, history[:start], size, cache._page_keys))
            self.pool.attach_part(cache.table, parent, history[start : len(history) - 1][:size])
        attached = cache.table.length - before
        self.prefix_hits += attached
        self.page_table.write(cache.row, cache.table.pages, before // self.pool.page_size)
        return attached

    def release(self, cache: PagedKV) -> None:
        """Release the pages and recurrent states of a cache, for eviction or recomputation."""
        self.pool.truncate(cache.table, 0)
        cache.slot = None

    def drop(self, cache: PagedKV) -> None:
        """Return a cache whose recomputation failed to its evicted state, so that it is recomputed later."""
        self.release(cache)
        cache.is_resident = False

    def first_needed(self, length: int) -> int:
        """First position of a cache that the sliding window still needs, rounded down to a page."""
        size, window = self.pool.page_size, self.window
        return 0 if window is None else max(0, length - window) // size * size

    # ---------------------------------------------------------------- copies
    def copy(self, copies: list[tuple[int, int]]) -> None:
        """Copy pages of all layers, given as (source, target)."""
        size = self.pool.page_size
        for memory in self._memory:
            for source, target in copies:
                memory[target * size : (target + 1) * size] = memory[source * size : (source + 1) * size]

    def places(self, pages: Sequence[int], first: int, last: int) -> Tensor:
        """Slots of the positions [first, last) of a cache with these pages."""
        size = self.pool.page_size
        positions = torch.arange(first, last)
        return torch.tensor(pages, dtype=torch.int64)[positions // size] * size + positions % size

    @torch.inference_mode()
    def gather(self, pages: Sequence[int], first: int, last: int, *, is_export: bool = False) -> Tensor:
        """Keys and values of all layers at the positions [first, last), as one byte tensor on the host.

        `first` is the start of a page. Whole pages are copied at once, those of an export to where it is sent from.
        """
        size = (last - first) * self.position_bytes
        if is_export and self.device.type == "cpu":
            data = new_export(size)
        else:
            data = torch.empty(size, dtype=torch.uint8, device=self.device)
        PageRows(self._memory, self.pool.page_size).gather(pages, first, last, data)
        return to_host(data)

    @torch.inference_mode()
    def scatter(self, pages: Sequence[int], first: int, last: int, data: Tensor) -> None:
        """Write the result of `gather` to these pages."""
        if len(data) != (total := (last - first) * self.position_bytes):
            problem = f"a KV cache of {len(data)} bytes does not fit {last - first} positions of {total} bytes"
            raise LoadError(f"{problem}\n  fix: migrate caches only between components of the same network and dtype")
        data = data.to(self.device, non_blocking=True)
        PageRows(self._memory, self.pool.page_size).scatter(pages, first, last, data)


class _SwappedKV:
    """Data of a swapped-out cache, shared by its forks. It counts against the swap space until it is collected."""

    def __init__(self, store: KVStore, data: Tensor) -> None:
        self.data = data
        store.swap_bytes -= data.nbytes
        weakref.finalize(self, _release_swap, store, data.nbytes)


def _release_swap(store: KVStore, size: int) -> None:
    store.swap_bytes += size


class PagedKV(KV):
    """KV cache of one request: its page table, the lineage of its inputs, and its sampler state."""

    is_evictable: ClassVar[bool] = True
    extra_pages: int = 0
    """Number of pages in addition to those of its tokens."""

    def __init__(self, store: KVStore, sampler: SamplerState, table: PageTable | None = None) -> None:
        self.store = store
        self.table = store.pool.new_table() if table is None else table
        self.row = store.page_table.allocate()
        store.page_table.write(self.row, self.table.pages, 0)
        self.sampler = sampler
        self.tenant = ""
        """Tenant of its request. The prefix cache is shared within a tenant only."""
        self.adapter: LoadedAdapter | None = None
        """LoRA adapter of its request. The prefix cache is shared within an adapter only."""
        self.embeddings: list[tuple[int, Tensor, int]] = []
        """Inputs that were embeddings, as (index in the sampler's history, embeddings, number of content ids in the
        history that they replace). With the history they are the lineage of the cache."""
        self._page_keys: list[bytes] | None = []
        """Prefix cache keys of its full pages; None after embeddings without content ids."""
        self._sent_ahead: dict[str, int] = {}
        """Number of its first positions that each worker was sent."""
        self.slot: Slot | None = None
        """Recurrent states after its last position; None before the first one, and if there are none."""
        self.guess = Guess()
        """The step that was launched ahead for it."""
        self._evicted_length = 0
        self._swapped: _SwappedKV | None = None
        self._finalizer = weakref.finalize(self, _free, store, self.table, self.row)

    # ---------------------------------------------------------------- fork and rollback
    def fork(self) -> Self:
        """A copy that shares the pages until one of the two is extended (copy on write)."""
        self.guess.drop()  # its position can be in a page that is shared now
        forked = type(self)(self.store, self.sampler.fork(), self.store.pool.fork(self.table))
        forked.tenant, forked.embeddings, forked.slot = self.tenant, [*self.embeddings], self.slot
        forked.adapter = self.adapter
        forked._page_keys = None if self._page_keys is None else [*self._page_keys]
        forked._sent_ahead = {**self._sent_ahead}
        forked.is_resident, forked._evicted_length, forked._swapped = (
            self.is_resident,
            self._evicted_length,
            self._swapped,
        )
        return forked

    def snapshot(self) -> Any:
        """The current position."""
        return self.table.length, len(self.embeddings), self.slot, self.sampler.snapshot()

    def rollback(self, snapshot: Any) -> None:
        """Drop the inputs since the snapshot."""
        self.guess.drop()
        length, embeddings, self.slot, sampler = snapshot
        self.store.pool.truncate(self.table, length)
        del self.embeddings[embeddings:]
        if self._page_keys is not None:
            del self._page_keys[length // self.store.pool.page_size :]
        full = length // self.store.pool.page_size * self.store.pool.page_size
        self._sent_ahead = {to: min(sent, full) for to, sent in self._sent_ahead.items()}
        self.sampler.rollback(sampler)

    def free(self) -> None:
        """Release the pages now, not at garbage collection."""
        self.guess.drop()
        _share_all_pages(self)
        self._finalizer()
        self.slot = None

    def __del__(self) -> None:
        """Share its last page before the finalizer releases the pages: most caches are dropped, not freed."""
        if "_finalizer" in vars(self) and self._finalizer.alive:
            _share_all_pages(self)

    # ---------------------------------------------------------------- inputs and prefix cache
    def unfilled_page_keys(self) -> list[bytes]:
        """Prefix cache keys of the full pages to fill next. The last token is excluded: its logits are needed, so it
        must be computed."""
        if self._page_keys is None or not self.store.has_prefix_cache:
            return []
        size = self.store.pool.page_size
        first, namespace = self.table.length // size, prefix_namespace(self.tenant, self.adapter)
        return page_keys(namespace, self.sampler.history[:-1], size, self._page_keys)[first:]

    def append_embeddings(self, embeddings: Tensor, count: int = 0) -> None:
        """Record input embeddings, whose content ids are the last `count` tokens of the history.

        Equal content ids mean equal embeddings. Without content ids (count 0) the prefix cache is not used.
        """
        self.embeddings.append((len(self.sampler.history) - count, embeddings, count))
        if not count:
            self._page_keys = None

    def lineage(self) -> Iterator[Tensor]:
        """All inputs in order, as tensors of tokens or embeddings."""
        done, history = 0, torch.tensor(self.sampler.history.tolist(), dtype=torch.int64)
        for index, embeddings, count in self.embeddings:
            yield history[done:index]
            yield embeddings
            done = index + count
        yield history[done:]

    def share_full_pages(self) -> None:
        """Add the full pages to the prefix cache."""
        size = self.store.pool.page_size
        full = self.table.length // size
        if self._page_keys is None or len(self._page_keys) >= full or not self.store.has_prefix_cache:
            return
        # The history can be longer than the computed positions.
        tokens = self.sampler.history[: full * size]
        namespace = prefix_namespace(self.tenant, self.adapter)
        self._page_keys = share_pages(self.store.pool, self.table, namespace, tokens, self._page_keys)

    # ---------------------------------------------------------------- eviction and migration
    def evict(self) -> None:
        """Release the pages. The data is swapped out if it fits into the swap space, else dropped for recomputation."""
        self.guess.drop()
        self._evicted_length, self.is_resident = self.table.length, False
        data = self._data()
        self._swapped = _SwappedKV(self.store, data) if data.nbytes <= self.store.swap_bytes else None
        self.store.release(self)

    @property
    def is_dropped(self) -> bool:
        """Whether it was evicted without swap, so that it must be recomputed."""
        return not self.is_resident and self._swapped is None

    def restore(self) -> None:
        """Allocate pages again and swap the data in; a dropped cache gets empty pages. Raises OutOfPages, changing
        nothing."""
        first, states = self.store.first_needed(self._evicted_length), self.store.states
        slots = states.allocate(1) if states is not None and self._swapped is not None and self._evicted_length else []
        self.store.pool.skip(self.table, first)
        try:
            self.store.pool.extend(self.table, self._evicted_length - first)
        except OutOfPages:
            self.store.pool.truncate(self.table, 0)
            raise
        self.store.page_table.write(self.row, self.table.pages, 0)
        if self._swapped is not None:
            data = self._swapped.data
            if states is not None and slots:
                (self.slot,) = slots
                data, own_states = data.split([len(data) - states.slot_bytes, states.slot_bytes])
                states.scatter(self.slot, own_states)
            self.store.scatter(self.table.pages, first, self._evicted_length, data)
        self._swapped, self.is_resident = None, True

    def export(self) -> ExportedKV:
        """Serializable copy, for migration."""
        embeddings = tuple((index, part.cpu(), count) for index, part, count in self.embeddings)
        data, store = self._data(is_export=True), self.store
        if store.rank is not None:
            data = join_shards(data, store.head_bytes, self.table.length - self.store.first_needed(self.table.length))
        sampler = self.sampler.export()
        return ExportedKV(
            self.table.length, self.tenant, embeddings, sampler, data, adapter=self.adapter and self.adapter.adapter
        )

    def export_ahead(self, to: str) -> ExportedPages | None:
        """The full pages that a worker was not sent, if they are enough for a message."""
        store, size = self.store, self.store.pool.page_size
        first, last = self._sent_ahead.get(to, 0), self.table.length // size * size
        if last - first < MIN_SENT_AHEAD or not store.keeps_sent_pages:
            return None
        self.share_full_pages()
        if self._page_keys is None or len(self._page_keys) * size < last:
            return None
        self._sent_ahead[to] = last
        keys = tuple(self._page_keys[first // size : last // size])
        return ExportedPages(keys, size, store.gather(self.table.pages, first, last, is_export=True))

    def export_rest(self, to: str) -> ExportedKV:
        """Serializable copy without the pages that a worker was sent ahead."""
        first = self._sent_ahead.get(to, 0)
        if not first:
            return self.export()
        embeddings = tuple((index, part.cpu(), count) for index, part, count in self.embeddings)
        data = self.store.gather(self.table.pages, first, self.table.length, is_export=True)
        sampler, adapter = self.sampler.export(), self.adapter and self.adapter.adapter
        return ExportedKV(self.table.length, self.tenant, embeddings, sampler, data, sent_ahead=first, adapter=adapter)

    def load(self, exported: ExportedKV) -> None:
        """Load an exported cache into this new one. Raises OutOfPages."""
        self.store.pool.require_capacity(self.pages_needed_for(exported))
        self._evicted_length = exported.length
        self.tenant, self.embeddings = exported.tenant, [*exported.embeddings]
        if exported.adapter is not None and self.store.load_adapter is not None:
            self.adapter = self.store.load_adapter(exported.adapter)
        self.sampler.load(exported.sampler)
        self._page_keys = [] if all(count for _, _, count in self.embeddings) else None
        data, store = exported.data, self.store
        if first := exported.sent_ahead:
            namespace = prefix_namespace(self.tenant, self.adapter)
            keys = page_keys(namespace, self.sampler.history[:first], store.pool.page_size, ())
            if not store.keeps_sent_pages or store.pool.attach_cached(self.table, keys) < first:
                store.drop(self)  # a page is gone, so all of them are computed again
                return
            try:
                store.pool.extend(self.table, exported.length - first)
            except OutOfPages:
                store.pool.truncate(self.table, 0)
                raise
            store.page_table.write(self.row, self.table.pages, 0)
            store.scatter(self.table.pages, first, exported.length, data)
            store.moved_ahead += first
            return
        if store.rank is not None:
            positions = exported.length - self.store.first_needed(exported.length)
            data = own_shard(data, store.head_bytes, positions, store.rank)
        self._swapped = _SwappedKV(store, data)
        self.restore()

    def pages_needed_for(self, exported: ExportedKV) -> int:
        """Number of pages that an exported cache needs."""
        size = self.store.pool.page_size
        return -(-(exported.length - self.store.first_needed(exported.length)) // size)

    def load_ahead(self, exported: ExportedPages) -> None:
        """Add pages of another worker to the prefix cache, if there is room for them."""
        store, count = self.store, len(exported.keys) * exported.page_size
        is_readable = exported.page_size == store.pool.page_size and len(exported.data) == count * store.position_bytes
        if store.keeps_sent_pages and is_readable and (pages := store.pool.add_cached(exported.keys)):
            store.scatter(pages, 0, count, exported.data)

    def _data(self, *, is_export: bool = False) -> Tensor:
        length, states = self.table.length, self.store.states
        data = self.store.gather(self.table.pages, self.store.first_needed(length), length, is_export=is_export)
        return data if states is None or self.slot is None else torch.cat([data, states.gather(self.slot)])


def _free(store: KVStore, table: PageTable, row: int) -> None:
    store.pool.free(table)
    store.page_table.free(row)


def _share_all_pages(cache: PagedKV) -> None:
    """Add all pages of a cache that ends to the prefix cache, its last one too. Nothing writes to them any more.

    Not on several ranks: they drop a cache at different times, and must attach the same pages.
    """
    store, length, history = cache.store, cache.table.length, cache.sampler.history
    is_computed = length <= len(history)  # not of a cache that only reserved pages
    if cache._page_keys is not None and store.has_prefix_cache and is_computed and store.rank is None:
        namespace = prefix_namespace(cache.tenant, cache.adapter)
        share_pages(store.pool, cache.table, namespace, history[:length], cache._page_keys)
