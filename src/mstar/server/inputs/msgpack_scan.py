"""Msgpack scan: counts the values of a body before any of them is decoded.

One byte of msgpack can stand for one Python object, so a small body decodes to many times its size. The scan reads
headers only and creates no objects. It yields to the event loop between slices, so that other clients do not wait, and
ends at the depth that no valid request has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from mstar.server.errors import ApiError
from mstar.server.http_exchange import MAX_JSON_VALUES, too_many_values_error

MAX_DEPTH = 256
"""Maximum nesting of arrays and maps."""

_SLICE_VALUES = 5000
"""Values that are scanned before other clients get their turn: about 1 ms."""
_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Size of the length field of bin, ext and str, by first byte."""
_EXT_CODES = (0xC7, 0xC8, 0xC9)
_COUNT_BYTES = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""Size of the count field of array and map, by first byte."""
_FIRST_MAP_CODE = 0xDE


def _fixed_size(code: int) -> int:
    """Bytes of a value that its first byte determines; 0 if the first byte does not."""
    if code < 0x80 or code >= 0xE0 or code in (0xC0, 0xC1, 0xC2, 0xC3):
        return 1
    if 0xA0 <= code <= 0xBF:
        return 1 + (code & 0x1F)
    numbers = {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
    fixed_ext = {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}
    return (numbers | fixed_ext).get(code, 0)


_FIXED_SIZES = tuple(_fixed_size(code) for code in range(256))


async def check_msgpack_value_count(content: bytes) -> None:
    """Raise ApiError if msgpack declares more than MAX_JSON_VALUES values, or is nested deeper than MAX_DEPTH.

    Malformed bytes are left to the decoder.
    """
    for _ in _scan(content):
        await asyncio.sleep(0)


def _scan(content: bytes) -> Generator[None]:
    """Yield after each slice. An array or map counts with its declared size, before its items."""
    position, pending, declared, size, until_yield = 0, 1, 0, len(content), _SLICE_VALUES
    outer = list[int]()  # pending values of the arrays and maps around the current one
    while position < size:
        while not pending:
            if not outer:
                return
            pending = outer.pop()
        code = content[position]
        pending -= 1
        until_yield -= 1
        if not until_yield:
            until_yield = _SLICE_VALUES
            yield
        if step := _FIXED_SIZES[code]:
            position += step
        elif (width := _LENGTH_BYTES.get(code)) is not None:
            length = int.from_bytes(content[position + 1 : position + 1 + width], "big")
            position += 1 + width + length + (code in _EXT_CODES)
        else:
            width = _COUNT_BYTES.get(code, 0)
            count = int.from_bytes(content[position + 1 : position + 1 + width], "big") if width else code & 0x0F
            is_map = code >= _FIRST_MAP_CODE if width else code < 0x90
            position += 1 + width
            declared += count
            if declared > MAX_JSON_VALUES:
                raise too_many_values_error()
            outer.append(pending)
            pending = 2 * count if is_map else count
            if len(outer) > MAX_DEPTH:
                message = f"the body is nested more than {MAX_DEPTH} levels deep. fix: send flat values"
                raise ApiError(400, "invalid_body", message)
