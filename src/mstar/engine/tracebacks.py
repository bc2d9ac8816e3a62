"""Errors that hold no frames.

A traceback keeps every frame alive, and so all that was in the batch, the states of other requests included. An error
is kept for long: a client is told, a test looks at it. So where it was raised is kept as text.
"""

from __future__ import annotations

import traceback

from mstar.errors import RowsFailed


def strip_traceback(error: Exception) -> Exception:
    """The same error; where it and the errors behind it were raised is now a note."""
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if each.__traceback__ is not None:
            each.add_note("raised at:\n" + "".join(traceback.format_tb(each.__traceback__)).rstrip())
            each.__traceback__ = None
        todo += [each.__cause__, each.__context__, *(each.errors.values() if isinstance(each, RowsFailed) else ())]
    return error
