"""Execution mode of author code as context variables: eager, traced, or inside a route.

Author-facing calls (`self.lm.kv()`, `stream.put(x)`, an op) look up the current tracer or session here and then either
compute or record. The rest of mstar does not depend on it. Only interfaces are defined here, so that this module
imports neither the tracer nor models.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from mstar.walk.states import State


class Session(Protocol):
    """The driver of a route: creates its states and records the walks that it calls."""

    def new_state(self, component: Any, kind: type[State]) -> State:
        """Create a state, or a handle of one that lives on a worker."""
        ...

    def on_walk_called(self, call: Any) -> None:
        """Record a call of a walk, which runs when it is awaited."""
        ...

    def add_lookahead(self, call: Any) -> Any:
        """Record that the route offers a walk to run early."""
        ...


class TraceRecorder(Protocol):
    """The part of the tracer that author-facing calls use. Each method records what the call of its name does."""

    def site(self) -> str:
        """`file:line` of the author's current line."""
        ...

    def problem(self, what: str, fix: str, site: str | None = None) -> Any:
        """Record a problem, and return a symbol to continue with."""
        ...

    def missing(self, what: str, known: Iterable[str]) -> Any:
        """Record the use of a component or op that does not exist."""
        ...

    def call(self, component: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of an op."""
        ...

    def new_state(self, component: Any, kind: type[State]) -> Any:
        """Record the creation of a state."""
        ...

    def open(self, stream: Any) -> None:
        """Record the creation of a stream."""
        ...

    def put(self, stream: Any, given: Any) -> None:
        """Record `stream.put(x)`."""
        ...

    def get(self, stream: Any, default: Any) -> Any:
        """Record `stream.get(default)`."""
        ...

    def loop(self, region: dict[str, Any]) -> Iterator[Any]:
        """Trace the body of a loop."""
        ...

    def windows(self, region: Any) -> Iterator[Any]:
        """Trace the body of a loop over windows."""
        ...

    def each(self, region: Any) -> Iterator[Any]:
        """Trace the body of an each."""
        ...

    def choose(self, flag: Any, then: Any, otherwise: Any) -> Any:
        """Trace both arms of a choice."""
        ...


tracer: ContextVar[TraceRecorder | None] = ContextVar("mstar.tracer", default=None)
session: ContextVar[Session | None] = ContextVar("mstar.session", default=None)

_PACKAGE_DIR = str(Path(__file__).parent)
_STDLIB_DIR = str(Path(os.__file__).parent)


def is_author_frame(frame: FrameType) -> bool:
    """Whether a frame runs the author's code: not this package, not the standard library, not numpy or torch."""
    path = frame.f_code.co_filename
    _, is_installed, inside = path.rpartition(f"{os.sep}site-packages{os.sep}")
    if is_installed:
        return inside.partition(os.sep)[0] not in ("numpy", "torch") and not path.startswith(_PACKAGE_DIR)
    return not path.startswith((_PACKAGE_DIR, _STDLIB_DIR, "<frozen"))


def author_site() -> str:
    """`file:line` of the innermost frame with author code."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and not is_author_frame(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
