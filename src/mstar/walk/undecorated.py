"""Finds a call of a component's method that is not an op, the usual reason why a walk fails inside a component."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType

from mstar.walk.component import Component
from mstar.walk.context import is_author_frame

_TRACE = ("mstar.walk.tracer", "trace")
"""Module and function that runs the code of a walk."""


@dataclass(frozen=True, slots=True)
class UndecoratedCall:
    """A walk's call of a method without `@op`."""

    what: str
    fix: str
    site: str
    """`file:line` of the call."""


def find_undecorated(frames: Iterable[tuple[FrameType, int]]) -> UndecoratedCall | None:
    """The first such call in a stack of frames with their current lines, outermost frame first."""
    caller = ""
    for frame, line in frames:
        if not is_author_frame(frame):
            continue
        owner, method = frame.f_locals.get("self"), frame.f_code.co_name
        if isinstance(owner, Component) and caller:
            what = f"the method `{method}` of component `{owner.name}` is not an op"
            return UndecoratedCall(what, f"add @op above `def {method}`, or do not call it in a walk", caller)
        caller = f"{frame.f_code.co_filename}:{line}"
    return None


def current_frames() -> list[tuple[FrameType, int]]:
    """The frames of this thread below the tracer, outermost first."""
    frames: list[tuple[FrameType, int]] = []
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) != _TRACE:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return frames[::-1]
