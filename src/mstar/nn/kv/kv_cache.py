"""The memory of a component's requests: keys and values of all layers, in pages, and each request's part of it.

Which pages are whose is counted by `mstar.nn.kv.page_pool`; how attention reads them is in `mstar.nn.kv.paged_attention`. A cache can leave
its pages, copied to other memory or dropped, and be brought back by its component.
"""

from __future__ import annotations

import hashlib
import weakref
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from mstar.errors import LoadError, OutOfPages
from mstar.nn.kv.page_pool import PagePool, PageTable
from mstar.nn.lm.sampler import SamplerSnapshot, SamplerState
from mstar.walk.states import KV


class KVStore:
    """Keys and values of all layers of one component, in pages."""

    def __init__(self, pool: PagePool, layers: int, *, swap_bytes: int) -> None:
        self.pool = pool
        self.swap_bytes = swap_bytes
        """How many more bytes may be kept outside of the pages, for caches that left them."""
        self.window: int | None = None
        """If every layer sees only so many positions, what is before them is forgotten."""
        self.keys: list[Tensor] = [torch.empty(0)] * layers
        self.values: list[Tensor] = [torch.empty(0)] * layers
        self.page_table = torch.zeros((64, 64), dtype=torch.int32)
        """[rows, pages]: what attention reads; a cache has a row of it."""
        self.page_table_array = self.page_table.numpy()
        """The same memory as an array."""
        self._rows = list(range(63, -1, -1))

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's memory as [positions, heads, size]; its shape is learnt from the first keys and values."""
        if not self.keys[index].numel():
            positions = self.pool.count * self.pool.page_size
            self.keys[index] = key.new_zeros((positions, *key.shape[1:]))
            self.values[index] = value.new_zeros((positions, *value.shape[1:]))
        return self.keys[index], self.values[index]

    # ---------------------------------------------------------------- rows of the table
    def allocate_row(self) -> int:
        """A row for a new cache."""
        if not self._rows:
            count = len(self.page_table_array)
            self._grow(2 * count, self.page_table_array.shape[1])
            self._rows = list(range(2 * count - 1, count - 1, -1))
        return self._rows.pop()

    def free_row(self, row: int) -> None:
        """A cache is gone."""
        self._rows.append(row)

    def write_row(self, row: int, pages: Sequence[int], first: int) -> None:
        """Write a cache's pages, from the one numbered `first` on, to its row."""
        if len(pages) > self.page_table_array.shape[1]:
            self._grow(len(self.page_table_array), 2 * len(pages))
        self.page_table_array[row, first : len(pages)] = pages[first:]

    def attach_cached(self, cache: PagedKV) -> int:
        """Give a cache the pages that others filled with what it is to read; how many positions need not be read."""
        before = cache.table.length
        found = self.pool.attach_cached(cache.table, cache.unfilled_page_keys()) - before
        self.write_row(cache.row, cache.table.pages, before // self.pool.page_size)
        return found

    def _grow(self, rows: int, width: int) -> None:
        table = torch.zeros((rows, width), dtype=torch.int32)
        table[: self.page_table.shape[0], : self.page_table.shape[1]] = self.page_table
        self.page_table, self.page_table_array = table, table.numpy()

    # ---------------------------------------------------------------- moving pages
    def copy(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole pages of all layers."""
        size = self.pool.page_size
        for memory in (*self.keys, *self.values):
            for source, target in copies:
                memory[target * size : (target + 1) * size] = memory[source * size : (source + 1) * size]

    def places(self, pages: Sequence[int], first: int, last: int) -> Tensor:
        """Where the positions [first, last) of a cache with these pages lie."""
        size = self.pool.page_size
        positions = torch.arange(first, last)
        return torch.tensor(pages, dtype=torch.int64)[positions // size] * size + positions % size

    @torch.inference_mode()
    def gather(self, places: Tensor) -> Tensor:
        """What lies at these places in all layers, as one run of bytes."""
        return torch.cat([memory[places].view(torch.uint8).flatten() for memory in (*self.keys, *self.values)])

    @torch.inference_mode()
    def scatter(self, places: Tensor, data: Tensor) -> None:
        """Put what `gather` gave at these places."""
        first = 0
        for memory in (*self.keys, *self.values):
            size = len(places) * memory[0].numel() * memory.element_size()
            rows = data[first : first + size].view(memory.dtype)
            memory[places] = rows.view(len(places), *memory.shape[1:])
            first += size
        if first != len(data):
            what = f"{len(data)} bytes are to fill {len(places)} positions, which take {first}"
            raise LoadError(f"{what}\n  fix: move caches only between components of the same network and dtype")


@dataclass(frozen=True, slots=True)
class ExportedKV:
    """A cache outside of its component's memory, to be put into another component like it, here or elsewhere."""

    length: int
    tenant: str
    embeddings: tuple[tuple[int, Tensor, int], ...]
    sampler: SamplerSnapshot
    data: Tensor
    """Keys and values of all layers, as one run of bytes."""
    cross_attention_cache: ExportedKV | None = None
    """What an encoder-decoder heard."""


class _SwappedKV:
    """Bytes of a cache that left its pages; forks of it share them."""

    def __init__(self, store: KVStore, data: Tensor) -> None:
        self.data = data
        store.swap_bytes -= data.nbytes
        weakref.finalize(self, _release_swap, store, data.nbytes)


def _release_swap(store: KVStore, size: int) -> None:
    store.swap_bytes += size


class PagedKV(KV):
    """The attention cache of one request: its pages, what was read into it, and what choosing tokens remembers."""

    is_evictable: ClassVar[bool] = True

    def __init__(self, store: KVStore, sampler: SamplerState, table: PageTable | None = None) -> None:
        self.store = store
        self.table = store.pool.new_table() if table is None else table
        self.row = store.allocate_row()
        store.write_row(self.row, self.table.pages, 0)
        self.sampler = sampler
        self.tenant = ""
        """Whose it is: pages are shared by content only among the caches of one tenant."""
        self.embeddings: list[tuple[int, Tensor, int]] = []
        """What it has read as embeddings, after how many tokens of the chooser's history, and instead of how many of
        them: with these, its lineage."""
        self._page_keys: list[bytes] | None = []
        """The keys of its full pages; None once it read what has no numbers."""
        self._evicted_length = 0
        self._swapped: _SwappedKV | None = None
        self._finalizer = weakref.finalize(self, _free, store, self.table, self.row)

    # ---------------------------------------------------------------- a state is a value
    def fork(self) -> Self:
        """A cache that shares the pages of this one until either is extended."""
        forked = type(self)(self.store, self.sampler.fork(), self.store.pool.fork(self.table))
        forked.tenant, forked.embeddings = self.tenant, [*self.embeddings]
        forked._page_keys = None if self._page_keys is None else [*self._page_keys]
        forked.is_resident, forked._evicted_length, forked._swapped = (
            self.is_resident,
            self._evicted_length,
            self._swapped,
        )
        return forked

    def snapshot(self) -> Any:
        """Where it is now."""
        return self.table.length, len(self.embeddings), self.sampler.snapshot()

    def rollback(self, snapshot: Any) -> None:
        """Forget what was read since the mark."""
        length, embeddings, chooser = snapshot
        self.store.pool.truncate(self.table, length)
        del self.embeddings[embeddings:]
        if self._page_keys is not None:
            del self._page_keys[length // self.store.pool.page_size :]
        self.sampler.rollback(chooser)

    def free(self) -> None:
        """Give the pages back now."""
        self._finalizer()

    # ---------------------------------------------------------------- reading
    def unfilled_page_keys(self) -> list[bytes]:
        """The keys of the pages that it is to fill, but for the one with the last token: what follows it is asked for,
        so it is read."""
        if self._page_keys is None or self.store.window is not None:
            return []
        return self._compute_page_keys(self.sampler.history[:-1])[self.table.length // self.store.pool.page_size :]

    def append_tokens(self, tokens: list[int]) -> None:
        """Remember tokens that are read."""
        self.sampler.append_tokens(tokens)

    def append_embeddings(self, embeddings: Tensor, count: int = 0) -> None:
        """Remember embeddings that are read, instead of the last so many tokens, which are their numbers.

        Where numbers are equal, embeddings are.
        """
        self.embeddings.append((len(self.sampler.history) - count, embeddings, count))
        if not count:
            self._page_keys = None

    def lineage(self) -> Iterator[Tensor]:
        """Everything that was read, in order: token numbers and embeddings."""
        done, history = 0, torch.tensor(self.sampler.history.tolist(), dtype=torch.int64)
        for after, embeddings, count in self.embeddings:
            yield history[done:after]
            yield embeddings
            done = after + count
        yield history[done:]

    def share_full_pages(self) -> None:
        """Let others have the pages that are full now."""
        size = self.store.pool.page_size
        full = self.table.length // size
        if self._page_keys is None or len(self._page_keys) >= full or self.store.window is not None:
            return
        self._page_keys = self._compute_page_keys(
            self.sampler.history[: full * size]
        )  # which may be ahead of what is read
        for key, page in zip(self._page_keys, self.table.pages, strict=False):
            self.store.pool.cache_page(key, page)

    def _compute_page_keys(self, tokens: array[int]) -> list[bytes]:
        """The key of each full page: a hash of all that is in it and before it, and of whose it is."""
        size = self.store.pool.page_size
        keys = [*(self._page_keys or [])]
        last = keys[-1] if keys else hashlib.blake2b(self.tenant.encode(), digest_size=16).digest()
        for page in range(len(keys), len(tokens) // size):
            part = tokens[page * size : (page + 1) * size].tobytes()
            last = hashlib.blake2b(last + part, digest_size=16).digest()
            keys.append(last)
        return keys

    # ---------------------------------------------------------------- leaving and moving
    def evict(self) -> None:
        """Give the pages up: what was in them is kept outside if there is room for it, else it is read again."""
        self._evicted_length, self.is_resident = self.table.length, False
        data = self._data()
        self._swapped = _SwappedKV(self.store, data) if data.nbytes <= self.store.swap_bytes else None
        self.store.pool.truncate(self.table, 0)

    @property
    def is_dropped(self) -> bool:
        """Whether it left its pages and nothing is kept, so that everything must be read again."""
        return not self.is_resident and self._swapped is None

    def restore(self) -> None:
        """Take pages again, empty if it was dropped. Raises OutOfPages, and changes nothing then."""
        first = self._first_needed(self._evicted_length)
        self.store.pool.skip(self.table, first)
        try:
            self.store.pool.extend(self.table, self._evicted_length - first)
        except OutOfPages:
            self.store.pool.truncate(self.table, 0)
            raise
        self.store.write_row(self.row, self.table.pages, 0)
        if self._swapped is not None:
            self.store.scatter(self._places(), self._swapped.data)
        self._swapped, self.is_resident = None, True

    def export(self) -> ExportedKV:
        """All of it as a value, for another component like this one."""
        return ExportedKV(self.table.length, self.tenant, tuple(self.embeddings), self.sampler.export(), self._data())

    def load(self, exported: ExportedKV) -> None:
        """Be what was exported. Only for a fresh cache. Raises OutOfPages."""
        self.store.pool.require_capacity(self.pages_needed_for(exported))
        self._evicted_length, self._swapped = exported.length, _SwappedKV(self.store, exported.data)
        self.restore()
        self.tenant, self.embeddings = exported.tenant, [*exported.embeddings]
        self.sampler.load(exported.sampler, self.store.keys[0].device)
        self._page_keys = [] if all(count for _, _, count in self.embeddings) else None

    def pages_needed_for(self, exported: ExportedKV) -> int:
        """How many pages a cache needs that was moved."""
        size = self.store.pool.page_size
        return -(-(exported.length - self._first_needed(exported.length)) // size)

    def _first_needed(self, length: int) -> int:
        """The first position that is still needed when so many were read; before it are whole pages."""
        size, window = self.store.pool.page_size, self.store.window
        return 0 if window is None else max(0, length - window) // size * size

    def _places(self) -> Tensor:
        length = self.table.length
        return self.store.places(self.table.pages, self._first_needed(length), length)

    def _data(self) -> Tensor:
        return self.store.gather(self._places())


def _free(store: KVStore, table: PageTable, row: int) -> None:
    store.pool.free(table)
    store.free_row(row)
