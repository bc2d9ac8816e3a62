"""The page tables of all caches of a component in one matrix, which attention reads (vLLM: block table)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

INITIAL_ROWS = INITIAL_PAGES = 64


class PageTableMatrix:
    """[rows, pages]: one row per cache. It grows with the number of caches and with the longest of them."""

    def __init__(self) -> None:
        self.tensor = torch.zeros((INITIAL_ROWS, INITIAL_PAGES), dtype=torch.int32)
        self.array = self.tensor.numpy()
        """The same memory as an array."""
        self._free = list(range(INITIAL_ROWS - 1, -1, -1))

    def allocate(self) -> int:
        """Allocate the row of a new cache."""
        if not self._free:
            count = len(self.array)
            self._grow(2 * count, self.array.shape[1])
            self._free = list(range(2 * count - 1, count - 1, -1))
        return self._free.pop()

    def free(self, row: int) -> None:
        """Release the row of a cache."""
        self._free.append(row)

    def write(self, row: int, pages: Sequence[int], first: int) -> None:
        """Write the pages of a cache, from index `first` on."""
        if len(pages) > self.array.shape[1]:
            self._grow(len(self.array), 2 * len(pages))
        self.array[row, first : len(pages)] = pages[first:]

    def _grow(self, rows: int, pages: int) -> None:
        tensor = torch.zeros((rows, pages), dtype=torch.int32)
        tensor[: self.tensor.shape[0], : self.tensor.shape[1]] = self.tensor
        self.tensor, self.array = tensor, tensor.numpy()
