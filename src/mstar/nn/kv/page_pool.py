"""Pages: the exact account of who holds which part of a component's memory.

Memory is cut into pages of equal size. A state has a table of pages; a fork shares them until one side writes (copy on
write). A full page may be kept under a key that says what is in it: another state with the same content then takes it
instead of making its own, also after the first one is gone, until its place is needed. This module counts and decides;
it moves no data and knows no tensor library: `extend` says which pages the caller must copy before it writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from mstar.errors import MstarError

RELEASED_PAGE = -1
"""What stands in a table for a page whose positions were forgotten."""


class OutOfPages(MstarError):
    """There are not enough free pages. Nothing was changed."""


class NeverFits(OutOfPages):
    """There are fewer pages in all than something needs: it is of no use to wait."""


@dataclass(eq=False, slots=True)
class PageTable:
    """The pages of one state, in order, and how many positions of them it uses."""

    pages: list[int] = field(default_factory=list[int])
    length: int = 0
    forgotten: int = 0
    """How many pages at the beginning are GONE."""


class PagePool:
    """A fixed number of pages, shared by the states of one component."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.count = pages
        self._free = list(range(pages - 1, -1, -1))
        self._ref_counts = [0] * pages
        self._tables: set[PageTable] = set()
        self._cached: dict[bytes, int] = {}
        self._page_keys: dict[int, bytes] = {}
        self._idle: dict[int, None] = {}
        """Kept pages that no table holds, the first to go first."""

    @property
    def free_pages(self) -> int:
        """How many pages no table holds."""
        return len(self._free) + len(self._idle)

    def new_table(self) -> PageTable:
        """An empty table."""
        table = PageTable()
        self._tables.add(table)
        return table

    def pages_needed(self, table: PageTable, positions: int) -> int:
        """How many free pages it takes to extend a table by so many positions."""
        more = -(-(table.length + positions) // self.page_size) - len(table.pages)
        return more + 1 if positions and self._shares_last(table) else more

    def require_free(self, pages: int) -> None:
        """Raise OutOfPages unless so many pages are free."""
        if pages > self.free_pages:
            raise OutOfPages(
                f"{pages} pages of {self.page_size} are needed, {self.free_pages} of {self.count} are free\n"
                f"  fix: give the component more pages, or let fewer requests in"
            )

    def require_capacity(self, pages: int) -> None:
        """Raise NeverFits unless there are so many pages, free or not."""
        if pages > self.count:
            raise NeverFits(
                f"{pages} pages of {self.page_size} are needed, and there are {self.count}\n"
                f"  fix: give the component more pages, or ask for fewer tokens"
            )

    def extend(self, table: PageTable, positions: int) -> list[tuple[int, int]]:
        """Make room for more positions at the end; the (from, to) pages that must be copied before they are written."""
        copies: list[tuple[int, int]] = []
        if needed := self.pages_needed(table, positions):
            self.require_free(needed)
            if positions > 0 and self._shares_last(table):
                shared = table.pages[-1]
                table.pages[-1] = self._allocate()
                self._release(shared)
                copies.append((shared, table.pages[-1]))
            while len(table.pages) * self.page_size < table.length + positions:
                table.pages.append(self._allocate())
        table.length += positions
        return copies

    def _shares_last(self, table: PageTable) -> bool:
        """Whether the page that would be written next is partly full and not this table's alone."""
        if not table.length % self.page_size:
            return False
        last = table.pages[-1]
        return self._ref_counts[last] > 1 or last in self._page_keys

    def fork(self, table: PageTable) -> PageTable:
        """A table that shares all pages of another."""
        forked = self.new_table()
        forked.pages, forked.length, forked.forgotten = [*table.pages], table.length, table.forgotten
        for page in table.pages[table.forgotten :]:
            self._ref_counts[page] += 1
        return forked

    def truncate(self, table: PageTable, length: int) -> None:
        """Take back the positions from `length` on: all, or none that would leave a forgotten page partly used."""
        keep = -(-length // self.page_size)
        for page in table.pages[max(keep, table.forgotten) :]:
            self._release(page)
        del table.pages[keep:]
        table.length, table.forgotten = length, min(keep, table.forgotten)

    def skip(self, table: PageTable, positions: int) -> None:
        """Begin an empty table as if so many positions, whole pages of them, had been forgotten."""
        table.forgotten = positions // self.page_size
        table.pages, table.length = [RELEASED_PAGE] * table.forgotten, positions

    def forget(self, table: PageTable, before: int) -> None:
        """Give back the pages that hold nothing but positions before this one: a sliding window has left them."""
        while (table.forgotten + 1) * self.page_size <= min(before, table.length):
            self._release(table.pages[table.forgotten])
            table.pages[table.forgotten] = RELEASED_PAGE
            table.forgotten += 1

    def free(self, table: PageTable) -> None:
        """Give all pages of a table back; the table is dead."""
        self.truncate(table, 0)
        self._tables.remove(table)

    def cache_page(self, key: bytes, page: int) -> None:
        """Remember a full page by what is in it. The first page with a content stays the one that is found."""
        if key not in self._cached and page not in self._page_keys:
            self._cached[key] = page
            self._page_keys[page] = key

    def attach_cached(self, table: PageTable, keys: Iterable[bytes]) -> int:
        """Go on in a table with the pages kept under these keys, as far as they are there; its length then.

        A page that it has partly filled is given back for one that is full.
        """
        for key in keys:
            page = self._cached.get(key)
            if page is None:
                break
            if rest := table.length % self.page_size:
                self.truncate(table, table.length - rest)
            self._idle.pop(page, None)
            self._ref_counts[page] += 1
            table.pages.append(page)
            table.length += self.page_size
        return table.length

    def _allocate(self) -> int:
        if self._free:
            page = self._free.pop()
        else:
            page = next(iter(self._idle))
            del self._idle[page], self._cached[self._page_keys.pop(page)]
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
        """Raise unless every page is free, idle, or held by exactly as many tables as are counted."""
        held = Counter(page for table in self._tables for page in table.pages[table.forgotten :])
        counted = {page: holders for page, holders in enumerate(self._ref_counts) if holders}
        if dict(held) != counted or sorted([*self._free, *self._idle, *counted]) != list(range(self.count)):
            raise AssertionError(f"pages are held by {dict(held)}, counted as {counted}, free are {sorted(self._free)}")
        if (
            self._cached != {key: page for page, key in self._page_keys.items()}
            or not self._idle.keys() <= self._page_keys.keys()
        ):
            raise AssertionError(
                f"pages are kept as {self._cached}, with the keys {self._page_keys}, idle {[*self._idle]}"
            )
        for table in self._tables:
            if len(table.pages) != -(-table.length // self.page_size):
                raise AssertionError(f"a table of {table.length} positions has {len(table.pages)} pages")
            if table.pages[: table.forgotten] != [RELEASED_PAGE] * table.forgotten:
                raise AssertionError(f"a table that forgot {table.forgotten} pages has {table.pages}")
