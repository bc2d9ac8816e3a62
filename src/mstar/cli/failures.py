"""Exceptions of a model's code as `mstar run` prints them: the author's line and the message, or the traceback."""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING

from mstar.errors import LoadError, MstarError, format_site

if TYPE_CHECKING:
    from mstar.wire.failure import Failure


def describe_exception(error: Exception, *, with_traceback: bool) -> str | None:
    """Why the code of a model failed; None if `error` is not an exception of such code."""
    from mstar.frontend.actor import RequestFailed  # needs msgspec, which other commands run without
    from mstar.wire.failure import Failure, error_text
    from mstar.wire.messages import RequestFinished

    if isinstance(error, RequestFailed):
        end = error.end
        if not isinstance(end, RequestFinished) or not end.failure.traceback:
            return None
        return _describe(end.error_type, end.error_message, end.failure, with_traceback=with_traceback)
    if isinstance(error, MstarError):
        cause = error.__cause__
        if not isinstance(error, LoadError) or not isinstance(cause, Exception) or not with_traceback:
            return None  # its text has the line already
        return f"{Failure.from_exception(cause).traceback}\n{error}"
    failure = Failure.from_exception(error)
    if not failure.is_authored:
        return None
    return _describe(type(error).__name__, error_text(error), failure, with_traceback=with_traceback)


def _describe(error_type: str, message: str, failure: Failure, *, with_traceback: bool) -> str:
    what = f"op {failure.op} of walk {failure.walk} raised " if failure.op else ""
    summary, source = f"{what}{error_type}: {message}", ""
    if failure.is_authored:
        path, _, line = failure.location.rpartition(":")
        summary = f"{format_site(failure.location)}: {summary}"
        source = linecache.getline(path, int(line)).strip()
    if with_traceback:
        return f"{failure.traceback}\n{summary}"
    return f"{summary}\n" + (f"    {source}\n" if source else "") + "  fix: --traceback prints all frames"
