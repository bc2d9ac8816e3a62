"""Which of the three ways a walk's code is being run: eagerly, under the tracer, or from a route.

Author-facing calls (`self.lm.kv()`, `stream.put(x)`, an op) ask here and then either act or record. Nothing else in
mstar depends on what is current.
"""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mstar.walk.component import Component
    from mstar.walk.model import WalkCall
    from mstar.walk.states import State
    from mstar.walk.tracer import Tracer


class Session(Protocol):
    """Who runs a route: makes its states and takes note of the walks it calls."""

    def new_state(self, component: Component, kind: type[State]) -> State:
        """A fresh state, or a handle for one that lives on a worker."""
        ...

    def on_walk_called(self, call: WalkCall[object, object]) -> None:
        """A walk was called; it runs when it is awaited."""
        ...


tracer: ContextVar[Tracer | None] = ContextVar("mstar.tracer", default=None)
session: ContextVar[Session | None] = ContextVar("mstar.session", default=None)

_PACKAGE_DIR = str(Path(__file__).parent)
_STDLIB_DIR = str(Path(os.__file__).parent)


def is_author_frame(frame: FrameType) -> bool:
    """Whether a frame runs code of the author: neither of this package, nor of a library that an author calls."""
    path = frame.f_code.co_filename
    _, is_installed, inside = path.rpartition(f"{os.sep}site-packages{os.sep}")
    if is_installed:
        return inside.partition(os.sep)[0] not in ("numpy", "torch") and not path.startswith(_PACKAGE_DIR)
    return not path.startswith((_PACKAGE_DIR, _STDLIB_DIR, "<frozen"))


def author_site() -> str:
    """`file:line` of the nearest frame that is the author's own."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and not is_author_frame(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
