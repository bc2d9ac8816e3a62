"""The memory of a KV cache as rows, one per page: whole pages are copied at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


class PageRows:
    """Keys and values of all layers, each as [positions, heads, size], in pages of `page_size` positions."""

    def __init__(self, memory: Sequence[Tensor], page_size: int) -> None:
        self._page_size = page_size
        positions = [each.view(torch.uint8).flatten(1) for each in memory]
        self._rows = [
            # Copies of 8 bytes at a time are as much faster than of one.
            each.view(-1, page_size * each.shape[1]).view(torch.int64 if each.shape[1] % 8 == 0 else torch.uint8)
            for each in positions
        ]

    def gather(self, pages: Sequence[int], first: int, last: int, data: Tensor) -> None:
        """Copy the positions [first, last) to a byte tensor, one layer after the other. `first` starts a page."""
        whole = self._whole_pages(pages, first, last)
        for rows, full, rest, last_row in self._parts(pages, len(whole), last, data):
            torch.index_select(rows, 0, whole, out=full)
            rest.copy_(last_row)

    def scatter(self, pages: Sequence[int], first: int, last: int, data: Tensor) -> None:
        """Write what `gather` copied to these pages."""
        whole = self._whole_pages(pages, first, last)
        for rows, full, rest, last_row in self._parts(pages, len(whole), last, data):
            rows.index_copy_(0, whole, full)
            last_row.copy_(rest)

    def _whole_pages(self, pages: Sequence[int], first: int, last: int) -> Tensor:
        """Numbers of the pages that the positions [first, last) fill."""
        whole = torch.tensor(pages[first // self._page_size : last // self._page_size], dtype=torch.int64)
        return whole.to(self._rows[0].device) if self._rows else whole

    def _parts(
        self, pages: Sequence[int], count: int, last: int, data: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """For each layer: its rows, its part of the data for whole pages, the rest, and the part of a row for that."""
        page, rest = divmod(last, self._page_size)
        start = 0
        for rows in self._rows:
            width = rows.shape[1]
            units = count * width, rest * width // self._page_size
            full, tail = data[start : start + sum(units) * rows.element_size()].view(rows.dtype).split(units)
            start += sum(units) * rows.element_size()
            yield rows, full.view(count, width), tail, rows[pages[page] if rest else 0, : units[1]]
