"""Prompts of one batch that begin with the same pages: one of them computes these, and the others share them."""

from __future__ import annotations

from collections.abc import Mapping

from mstar.nn.kv.kv_cache import PagedKV

_MIN_SHARED_POSITIONS = 64
"""Minimum number of positions saved before an extra forward computes a prefix shared within a batch."""


def shared_prefix_leaders(caches: Mapping[int, PagedKV]) -> dict[int, int]:
    """Rows that compute a prefix for others of the batch, with its number of positions.

    Empty if fewer than _MIN_SHARED_POSITIONS positions would be saved.
    """
    first_row: dict[bytes, int] = {}
    prefixes: dict[int, int] = {}
    saved = 0
    for row, cache in caches.items():
        keys = cache.unfilled_page_keys()
        leader = first_row.get(keys[0]) if keys else None
        if leader is None:
            first_row |= dict.fromkeys(keys, row)
            continue
        size, shared = cache.store.pool.page_size, sum(first_row.get(key) == leader for key in keys)
        end = (cache.table.length // size + shared) * size
        prefixes[leader] = max(prefixes.get(leader, 0), end - caches[leader].table.length)
        saved += shared * size
    return prefixes if saved >= _MIN_SHARED_POSITIONS else {}
