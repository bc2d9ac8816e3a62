"""Keys of the pages in the prefix cache: a hash chain over a namespace, which is the tenant and its adapter, and
all tokens up to the end of the page.

The last page of a cache that is dropped is shared too, although it is not full: nothing writes to it any more. So the
tokens of a conversation are found up to the last one, wherever its cache ends.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from mstar.nn.kv.page_pool import PagePool, PageTable
from mstar.nn.lm.adapters.low_rank import LoadedAdapter


def prefix_namespace(tenant: str, adapter: LoadedAdapter | None) -> str:
    """What requests have in common that share prefixes: the tenant, and the weights of the adapter."""
    return tenant if adapter is None else f"{tenant}\0{adapter.adapter.checksum}"


def last_key(namespace: str, keys: Sequence[bytes]) -> bytes:
    """Key of the last of these pages of a namespace; of the empty prefix, if there are none."""
    return keys[-1] if keys else hashlib.blake2b(namespace.encode(), digest_size=16).digest()


def page_keys(namespace: str, tokens: array[int], size: int, keys: Sequence[bytes]) -> list[bytes]:
    """Keys of the full pages of these tokens, of which the first ones are known."""
    extended = [*keys]
    for start in range(len(keys) * size, len(tokens) // size * size, size):
        extended.append(_following_key(last_key(namespace, extended), tokens[start : start + size]))
    return extended


def share_pages(
    pool: PagePool, table: PageTable, namespace: str, tokens: array[int], keys: Sequence[bytes]
) -> list[bytes]:
    """Add the pages of these tokens to the prefix cache, except those with keys; return the keys of all full ones."""
    size, shared = pool.page_size, [*keys]
    for index in range(len(keys), -(-len(tokens) // size)):
        parent, page, content = (
            last_key(namespace, shared),
            table.pages[index],
            tokens[index * size : (index + 1) * size],
        )
        shared.append(_following_key(parent, content))
        pool.cache_page(shared[-1], page)
        pool.index_page(page, parent, content)
    return shared[: len(tokens) // size]


def _following_key(parent: bytes, tokens: array[int]) -> bytes:
    return hashlib.blake2b(parent + tokens.tobytes(), digest_size=16).digest()
