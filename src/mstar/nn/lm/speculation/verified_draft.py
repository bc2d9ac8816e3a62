"""VerifiedDraft: draft tokens of a request whose keys, values and logits are computed, but which it has not read."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from torch import Tensor

from mstar.nn.kv.kv_cache import PagedKV
from mstar.nn.kv.page_pool import PagePool, PageTable


class VerifiedDraft:
    """The guess of one cache that its next tokens are those of a draft.

    Their positions lie behind the end of the cache, and the pages that only they use are held in reserve. So the draft
    changes no state until the walk feeds back its tokens, and to undo it is to drop it.
    """

    def __init__(self, cache: PagedKV, tokens: Sequence[int], logits: Tensor) -> None:
        """Take the last positions of a cache, one for each token. `logits` has what follows each of them."""
        table, self._pool = cache.table, cache.store.pool
        self._tokens, self._logits = tokens, logits
        self._start = table.length - len(tokens)
        self._next = 0
        keep = -(-self._start // self._pool.page_size)
        self._held = self._pool.new_table()
        self._held.pages, table.pages[keep:] = table.pages[keep:], []
        self._held.length, table.length = len(self._held.pages) * self._pool.page_size, self._start
        self._free = weakref.finalize(self, _free_pages, self._pool, self._held)
        self._free.atexit = False

    def keep_logits(self) -> None:
        """Copy its logits, which the next forward can overwrite."""
        self._logits = self._logits.clone()

    def continues(self, cache: PagedKV, token: int) -> bool:
        """Whether this token of the cache is the next one of the draft."""
        return self._tokens[self._next] == token and cache.table.length == self._start + self._next

    @property
    def left(self) -> Sequence[int]:
        """Its tokens that the walk has not fed back."""
        return self._tokens[self._next :]

    def accept(self, cache: PagedKV) -> Tensor:
        """Append the next token to the cache; return the logits after it."""
        table, held = cache.table, self._held
        if not table.length % self._pool.page_size:
            table.pages.append(held.pages.pop(0))
            held.length -= self._pool.page_size
            cache.store.page_table.write(cache.row, table.pages, len(table.pages) - 1)
        table.length += 1
        cache.sampler.history.append(self._tokens[self._next])
        self._next += 1
        if self._next == len(self._tokens):
            cache.guess.drop()
        return self._logits[self._next - 1]

    def release(self, row: int) -> None:  # noqa: ARG002 - it has one row
        """Release the pages that it holds."""
        self._free()


def _free_pages(pool: PagePool, held: PageTable) -> None:
    pool.free(held)
