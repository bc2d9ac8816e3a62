"""Removal of tracebacks from stored errors.

A traceback keeps every frame alive, and with it all values of the batch, including states of other requests. Errors
outlive their batch, so the location is kept as text instead.
"""

from __future__ import annotations

import traceback

from mstar.errors import RowsFailed


def strip_traceback(error: Exception) -> Exception:
    """Replace the traceback of an error, its causes and its row errors by a note. Returns the same error."""
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        current = todo.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        if current.__traceback__ is not None:
            current.add_note("raised at:\n" + "".join(traceback.format_tb(current.__traceback__)).rstrip())
            current.__traceback__ = None
        todo += [current.__cause__, current.__context__]
        if isinstance(current, RowsFailed):
            todo += current.errors.values()
    return error
