"""Pages: the exact account of who holds which part of a component's memory.

Memory is cut into pages of equal size. A state has a table of pages; a fork shares them until one side writes (copy on
write). This module counts and decides; it moves no data and knows no tensor library: `extend` says which pages the
caller must copy before it writes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mstar.errors import MstarError


class OutOfPages(MstarError):
    """There are not enough free pages. Nothing was changed."""


@dataclass(eq=False, slots=True)
class Table:
    """The pages of one state, in order, and how many positions of them it uses."""

    pages: list[int] = field(default_factory=list[int])
    length: int = 0


class Pool:
    """A fixed number of pages, shared by the states of one component."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.count = pages
        self._free = list(range(pages - 1, -1, -1))
        self._holders = [0] * pages
        self._tables: set[Table] = set()

    @property
    def free_pages(self) -> int:
        """How many pages nobody holds."""
        return len(self._free)

    def new(self) -> Table:
        """An empty table."""
        table = Table()
        self._tables.add(table)
        return table

    def needed(self, table: Table, positions: int) -> int:
        """How many free pages it takes to extend a table by so many positions."""
        pages = -(-(table.length + positions) // self.page_size)
        return pages - len(table.pages) + (positions > 0 and self._shares_last(table))

    def reserve(self, pages: int) -> None:
        """Raise OutOfPages unless so many pages are free."""
        if pages > len(self._free):
            raise OutOfPages(
                f"{pages} pages of {self.page_size} are needed, {len(self._free)} of {self.count} are free\n"
                f"  fix: give the component more pages, or let fewer requests in"
            )

    def extend(self, table: Table, positions: int) -> list[tuple[int, int]]:
        """Make room for more positions at the end; the (from, to) pages that must be copied before they are written."""
        self.reserve(self.needed(table, positions))
        copies: list[tuple[int, int]] = []
        if positions > 0 and self._shares_last(table):
            shared = table.pages[-1]
            table.pages[-1] = self._take()
            self._holders[shared] -= 1
            copies.append((shared, table.pages[-1]))
        table.length += positions
        while len(table.pages) * self.page_size < table.length:
            table.pages.append(self._take())
        return copies

    def _shares_last(self, table: Table) -> bool:
        """Whether the page that would be written next is partly full and another state holds it too."""
        return table.length % self.page_size > 0 and self._holders[table.pages[-1]] > 1

    def fork(self, table: Table) -> Table:
        """A table that shares all pages of another."""
        forked = self.new()
        forked.pages, forked.length = [*table.pages], table.length
        for page in table.pages:
            self._holders[page] += 1
        return forked

    def truncate(self, table: Table, length: int) -> None:
        """Forget the positions from `length` on."""
        keep = -(-length // self.page_size)
        for page in table.pages[keep:]:
            self._release(page)
        del table.pages[keep:]
        table.length = length

    def free(self, table: Table) -> None:
        """Give all pages of a table back; the table is dead."""
        self.truncate(table, 0)
        self._tables.remove(table)

    def _take(self) -> int:
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def _release(self, page: int) -> None:
        self._holders[page] -= 1
        if not self._holders[page]:
            self._free.append(page)

    def check(self) -> None:
        """Raise unless every page is free or held by exactly as many tables as are counted."""
        held = Counter(page for table in self._tables for page in table.pages)
        counted = {page: holders for page, holders in enumerate(self._holders) if holders}
        if dict(held) != counted or sorted([*self._free, *counted]) != list(range(self.count)):
            raise AssertionError(f"pages are held by {dict(held)}, counted as {counted}, free are {sorted(self._free)}")
        for table in self._tables:
            if len(table.pages) != -(-table.length // self.page_size):
                raise AssertionError(f"a table of {table.length} positions has {len(table.pages)} pages")
