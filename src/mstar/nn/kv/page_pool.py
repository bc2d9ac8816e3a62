"""Page allocator of a paged KV cache: page tables, copy-on-write forks, and the prefix cache.

Memory is divided into pages of equal size. Each state has a page table; a fork shares the pages of its parent until one
of them writes (copy on write). A page can be cached under a key of its content (prefix cache): another state with the
same prefix attaches the page instead of computing it again, or the start of it up to the first other token. A cached
page that no table uses stays until its place is needed.

This module only does the accounting. It moves no data and imports no tensor library: `extend` returns the pages that
the caller must copy before it writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mstar.errors import NeverFits, OutOfPages

RELEASED_PAGE = -1
"""Entry in a page table for a page that a sliding window has released."""


@dataclass(eq=False, slots=True)
class PageTable:
    """Page table of one state: its pages in order, and the number of positions in use."""

    pages: list[int] = field(default_factory=list[int])
    length: int = 0
    forgotten: int = 0
    """Number of released pages at the start."""


class PagePool:
    """Fixed number of pages, shared by the states of one component."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.count = pages
        self._free = list(range(pages - 1, -1, -1))
        self._ref_counts = [0] * pages
        self._tables: set[PageTable] = set()
        self._cached: dict[bytes, int] = {}
        self._page_keys: dict[int, bytes] = {}
        self._idle: dict[int, None] = {}
        """Cached pages that no table uses, in order of eviction."""
        self._followers: dict[tuple[bytes, int], dict[int, Sequence[int]]] = {}
        """Tokens of cached pages, by the key of the page before them and their first token."""
        self._parents: dict[int, tuple[bytes, int]] = {}
        """Key in `_followers` of each page in it."""

    @property
    def free_pages(self) -> int:
        """Number of pages that no table uses, idle cached ones included."""
        return len(self._free) + len(self._idle)

    def new_table(self) -> PageTable:
        """An empty table."""
        table = PageTable()
        self._tables.add(table)
        return table

    def pages_needed(self, tables: Sequence[PageTable], positions: Sequence[int]) -> list[int]:
        """Number of free pages needed to extend each of these tables by its number of positions.

        Without a call for each of them, because every decode step asks.
        """
        size, references, keys, needed = self.page_size, self._ref_counts, self._page_keys, [*positions]
        for row, table in enumerate(tables):
            length, count = table.length, positions[row]
            more = -(-(length + count) // size) + -length // size  # without the pages that it has
            if count and length % size:  # the last page is partly full: if it is shared, a write needs a copy of it
                last = table.pages[-1]
                if references[last] > 1 or last in keys:
                    more += 1
            needed[row] = more
        return needed

    def require_free(self, pages: int) -> None:
        """Raise OutOfPages unless this number of pages is free."""
        if pages > self.free_pages:
            raise OutOfPages(
                f"out of KV cache pages: {pages} pages of {self.page_size} positions needed, "
                f"{self.free_pages} of {self.count} free\n"
                f"  fix: give the component more pages, or admit fewer requests at a time"
            )

    def require_capacity(self, pages: int) -> None:
        """Raise NeverFits unless the pool has this number of pages, free or not."""
        if pages > self.count:
            raise NeverFits(
                f"request too long: {pages} KV cache pages of {self.page_size} positions needed, {self.count} exist\n"
                f"  fix: give the component more pages, or request fewer tokens"
            )

    def extend(self, table: PageTable, positions: int) -> list[tuple[int, int]]:
        """Append positions; return the (source, target) pages that the caller must copy before it writes."""
        copies: list[tuple[int, int]] = []
        (needed,) = self.pages_needed([table], [positions])
        if needed:
            self.require_free(needed)
            if needed > -(-(table.length + positions) // self.page_size) - len(table.pages):
                shared = table.pages[-1]
                table.pages[-1] = self._allocate()
                self._release(shared)
                copies.append((shared, table.pages[-1]))
            while len(table.pages) * self.page_size < table.length + positions:
                table.pages.append(self._allocate())
        table.length += positions
        return copies

    def fork(self, table: PageTable) -> PageTable:
        """A new table that shares all pages of another (copy on write)."""
        forked = self.new_table()
        forked.pages, forked.length, forked.forgotten = [*table.pages], table.length, table.forgotten
        for page in table.pages[table.forgotten :]:
            self._ref_counts[page] += 1
        return forked

    def truncate(self, table: PageTable, length: int) -> None:
        """Drop the positions from `length` on. The new end must not lie inside a released page."""
        keep = -(-length // self.page_size)
        for page in table.pages[max(keep, table.forgotten) :]:
            self._release(page)
        del table.pages[keep:]
        table.length, table.forgotten = length, min(keep, table.forgotten)

    def skip(self, table: PageTable, positions: int) -> None:
        """Start an empty table after this number of positions, whole pages, as if they had been released."""
        table.forgotten = positions // self.page_size
        table.pages, table.length = [RELEASED_PAGE] * table.forgotten, positions

    def forget(self, table: PageTable, before: int, *, moves_rest: bool = False) -> None:
        """Release the pages whose positions are all before this one: the sliding window has passed them.

        `moves_rest`: what follows moves to the front, with other positions, so that the table has no released pages.
        """
        while (table.forgotten + 1) * self.page_size <= min(before, table.length):
            self._release(table.pages[table.forgotten])
            table.pages[table.forgotten] = RELEASED_PAGE
            table.forgotten += 1
        if moves_rest:
            del table.pages[: table.forgotten]
            table.length -= table.forgotten * self.page_size
            table.forgotten = 0

    def free(self, table: PageTable) -> None:
        """Release all pages of a table, which cannot be used afterwards."""
        self.truncate(table, 0)
        self._tables.remove(table)

    def cache_page(self, key: bytes, page: int) -> None:
        """Cache a full page under the key of its content. The first page with a key stays the cached one."""
        if key not in self._cached and page not in self._page_keys:
            self._cached[key] = page
            self._page_keys[page] = key

    def add_cached(self, keys: Sequence[bytes]) -> list[int]:
        """Pages that are cached under these keys from now on, in order, for the caller to fill. Empty if all keys have
        a cached page, or if there are too few free pages."""
        if len(keys) > self.free_pages or all(key in self._cached for key in keys):
            return []
        table = self.new_table()
        self.extend(table, len(keys) * self.page_size)
        pages = [*table.pages]
        for key, page in zip(keys, pages, strict=True):
            self.cache_page(key, page)
        self.free(table)
        return pages

    def attach_cached(self, table: PageTable, keys: Iterable[bytes]) -> int:
        """Append the cached pages of these keys up to the first miss, and return the new length of the table.

        A partly filled last page is released in favor of the full cached one.
        """
        for key in keys:
            page = self._cached.get(key)
            if page is None:
                break
            if partial := table.length % self.page_size:
                self.truncate(table, table.length - partial)
            self._idle.pop(page, None)
            self._ref_counts[page] += 1
            table.pages.append(page)
            table.length += self.page_size
        return table.length

    def index_page(self, page: int, parent: bytes, tokens: Sequence[int]) -> None:
        """Let `attach_part` find a cached page: it follows the page with the key `parent` and has these tokens."""
        if page in self._page_keys and page not in self._parents:
            self._parents[page] = (parent, tokens[0])
            self._followers.setdefault(self._parents[page], {})[page] = tokens

    def attach_part(self, table: PageTable, parent: bytes, tokens: Sequence[int]) -> int:
        """Append the start of the cached page that shares most of these tokens, and return the new length of the table.

        `parent` is the key of the last full page of the table, and `tokens` begin after that page. A partly filled last
        page is released if another one has more of the tokens.
        """
        filled = table.length % self.page_size
        followers = self._followers.get((parent, tokens[0]), {}) if len(tokens) else {}
        shared, page = max(
            ((_shared_length(cached, tokens), page) for page, cached in followers.items()), default=(0, 0)
        )
        if shared > filled:
            self.truncate(table, table.length - filled)
            self._idle.pop(page, None)
            self._ref_counts[page] += 1
            table.pages.append(page)
            table.length += shared
        return table.length

    def _allocate(self) -> int:
        if self._free:
            page = self._free.pop()
        else:
            page = next(iter(self._idle))
            del self._idle[page], self._cached[self._page_keys.pop(page)]
            if (parent := self._parents.pop(page, None)) is not None:
                del self._followers[parent][page]
                if not self._followers[parent]:
                    del self._followers[parent]
        self._ref_counts[page] = 1
        return page

    def _release(self, page: int) -> None:
        self._ref_counts[page] -= 1
        if self._ref_counts[page]:
            return
        if page in self._page_keys:
            self._idle[page] = None
        else:
            self._free.append(page)

    def check(self) -> None:
        """Raise AssertionError unless reference counts, free pages and cached pages agree with the tables."""
        used = Counter(page for table in self._tables for page in table.pages[table.forgotten :])
        counted = {page: references for page, references in enumerate(self._ref_counts) if references}
        if dict(used) != counted or sorted([*self._free, *self._idle, *counted]) != list(range(self.count)):
            raise AssertionError(f"pages in use {dict(used)}, reference counts {counted}, free {sorted(self._free)}")
        if (
            self._cached != {key: page for page, key in self._page_keys.items()}
            or not self._idle.keys() <= self._page_keys.keys()
        ):
            raise AssertionError(f"cached pages {self._cached}, page keys {self._page_keys}, idle {[*self._idle]}")
        followers = {page: parent for parent, pages in self._followers.items() for page in pages}
        if followers != self._parents or not followers.keys() <= self._page_keys.keys():
            raise AssertionError(f"followers {followers}, parents {self._parents}, page keys {self._page_keys}")
        for table in self._tables:
            if len(table.pages) != -(-table.length // self.page_size):
                raise AssertionError(f"a table of {table.length} positions has {len(table.pages)} pages")
            if table.pages[: table.forgotten] != [RELEASED_PAGE] * table.forgotten:
                raise AssertionError(f"a table with {table.forgotten} released pages has {table.pages}")


def _shared_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    return next(
        (index for index, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
        min(len(first), len(second)),
    )
