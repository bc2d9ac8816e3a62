"""Control flow of walks: `loop`, `Stream`, `windows`, `each`, `choose`.

Each works on real values in an eager run and records a region under the tracer. The eager implementation in this module
defines the semantics; the tracer and every runtime must give the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

from mstar.errors import format_names, suggest_name
from mstar.walk import context
from mstar.walk.context import author_site
from mstar.walk.values import is_array, stack

T = TypeVar("T")


class _Region:
    """Base of regions whose values are attributes."""

    def _record_site(self, *actions: str) -> None:
        """While tracing, record the author's line of these actions."""
        if (tracer := context.tracer.get()) is not None:
            self.__dict__["_sites"].update(dict.fromkeys(actions, tracer.site()))

    def _require_open(self, method: str) -> None:
        """While tracing, report a call outside the body, where it has no effect."""
        if (tracer := context.tracer.get()) is not None and not self.__dict__["_is_open"]:
            what = f"{method}(...) is called outside the body of its {type(self).__name__} and has no effect"
            tracer.problem(what, f"call it inside the body: for ... in s: s.{method}(...)")

    def _require_unused(self, names: Iterable[str], taken: Iterable[str]) -> None:
        """While tracing, report a name that is already in use."""
        if (tracer := context.tracer.get()) is not None:
            for name in sorted({*names} & {*taken, *dir(type(self))}):
                what = f"`{name}` is already in use in this {type(self).__name__}: it cannot be carried or collected"
                tracer.problem(what, f"use another name, for example every_{name}")

    def _unknown(self, name: str, what: str, fix: str) -> Any:
        if (tracer := context.tracer.get()) is not None:
            return tracer.problem(what, fix)
        raise AttributeError(f"{what}\n  fix: {fix}", name=name)


class loop(_Region):  # noqa: N801 - reads as a verb where it is used
    """`s = loop(steps=n, x=x0)`, then `for step in s:`; the body reads and assigns `s.x`, which can be read after it.

    Only carried values cross iterations. `s.stop_when(flag)` ends the loop after the iteration in which the flag is
    true. `s.collect(y=value)` collects a value of every iteration; after the loop `s.y` is the list of them.
    """

    def __init__(self, *, steps: Any, **carry: Any) -> None:
        self.__dict__.update(carry, _steps=steps, _names=tuple(carry), _stops=[], _kept={}, _lists={}, _sites={})
        self.__dict__["_is_open"] = False
        self._record_site("loop")
        self._require_unused(carry, ())

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__["_names"]:
            self._not_carried(name)
        else:
            self.__dict__[name] = value
            self._record_site(name)

    def __getattr__(self, name: str) -> Any:
        lists = self.__dict__["_lists"]
        return lists[name] if name in lists else self._not_carried(name)

    def _not_carried(self, name: str) -> Any:
        names = self.__dict__["_names"]
        what = f"this loop does not carry `{name}`{suggest_name(name, names)}; it carries {format_names(names)}"
        return self._unknown(name, what, f"loop(..., {name}=<initial value>)")

    def stop_when(self, flag: Any) -> None:
        """End the loop after this iteration if the flag is true. Several flags are combined with `or`."""
        self._require_open("stop_when")
        self.__dict__["_stops"].append(flag)
        self._record_site(f"stop {len(self.__dict__['_stops'])}")

    def collect(self, **values: Any) -> None:
        """Append values of this iteration to the lists of these names."""
        self._require_open("collect")
        self._require_unused(values, self.__dict__["_names"])
        self.__dict__["_kept"].update(values)
        self._record_site(*(f"collect {name}" for name in values))

    def __iter__(self) -> Iterator[int]:
        if (tracer := context.tracer.get()) is not None:
            yield from tracer.loop(self.__dict__)
            return
        kept: list[dict[str, Any]] = []
        for step in range(int(self.__dict__["_steps"])):
            self.__dict__.update(_stops=[], _kept={})
            yield step
            kept.append(self.__dict__["_kept"])
            if any(bool(flag) for flag in self.__dict__["_stops"]):
                break
        self.__dict__["_lists"] = collect_lists(kept)


class Stream:
    """FIFO queue between two parts of a walk that run concurrently."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._items: list[Any] = []
        self._read = 0
        if (tracer := context.tracer.get()) is not None:
            tracer.open(self)

    def put(self, value: Any) -> None:
        """Append a value."""
        if (tracer := context.tracer.get()) is not None:
            tracer.put(self, value)
        else:
            self._items.append(value)

    def get(self, default: T) -> T:
        """The next value; `default` after the last value of a finished producer."""
        if (tracer := context.tracer.get()) is not None:
            return tracer.get(self, default)
        if self._read == len(self._items):
            return default
        self._read += 1
        return self._items[self._read - 1]

    def items(self) -> list[Any]:
        """All values put so far, in an eager run."""
        return self._items


class windows:  # noqa: N801 - reads as a verb where it is used
    """`for window in windows(stream, size=28, stride=7)`: sliding windows over a stream, as they fill.

    A window has `size` items, advances by `stride` (default: `size`), and is preceded by up to `context` earlier items.
    The first window can be smaller (`first`), so that output starts earlier. An incomplete last window is dropped,
    unless `flush` is set. `fresh` is the number of items that no earlier window had.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        size: int,
        stride: int | None = None,
        context: int = 0,
        first: int | None = None,
        flush: bool = False,
    ) -> None:
        self.stream = stream
        self.size = size + context
        self.stride = size if stride is None else stride
        self.first = size if first is None else first
        self.flush = flush
        self.fresh = 0
        self.site = author_site()

    def __iter__(self) -> Iterator[Any]:
        if (tracer := context.tracer.get()) is not None:
            yield from tracer.windows(self)
            return
        items = self.stream.items()
        seen, end = 0, self.first
        while end <= len(items) or (self.flush and seen < len(items)):
            self.fresh = min(end, len(items)) - seen
            yield stack(items[max(0, end - self.size) : end])
            seen, end = min(end, len(items)), end + self.stride


class each(_Region):  # noqa: N801 - reads as a verb where it is used
    """`e = each(items)`, then `for item in e:`: a parallel map, which runs the body once per item.

    `e.collect(y=value)` collects a value of each body; afterwards `e.y` is the list of them, in order. `items` is a
    list, or a tensor that is iterated along its first axis. Its length can differ between requests.
    """

    def __init__(self, items: Any) -> None:
        self.items = items
        self.index = 0
        """Index of the current item."""
        self.kept: dict[str, Any] = {}
        self.lists: Mapping[str, Any] = {}
        self._is_open = False
        self._sites: dict[str, str] = {}
        self._record_site("each")

    def collect(self, **values: Any) -> None:
        """Append values of this body to the lists of these names."""
        self._require_open("collect")
        self._require_unused(values, ("items", "index", "kept", "lists"))
        self.kept.update(values)
        self._record_site(*(f"collect {name}" for name in values))

    def __getattr__(self, name: str) -> Any:
        if name in self.lists:
            return self.lists[name]
        names = self.lists
        what = f"this each does not collect `{name}`{suggest_name(name, names)}; it collects {format_names(names)}"
        return self._unknown(name, what, f"call e.collect({name}=...) in its body")

    def __iter__(self) -> Iterator[Any]:
        if (tracer := context.tracer.get()) is not None:
            yield from tracer.each(self)
            return
        kept: list[dict[str, Any]] = []
        for index in range(self.items.shape[0] if is_array(self.items) else len(self.items)):
            self.index, self.kept = index, {}
            yield self.items[index]
            kept.append(self.kept)
        self.lists = collect_lists(kept)


class _Empty(dict[str, list[Any]]):
    """Collected values of a region that ran no body: an empty list for every name."""

    def __contains__(self, _: object) -> bool:
        return True

    def __missing__(self, _: str) -> list[Any]:
        return []


def collect_lists(kept: list[dict[str, Any]]) -> Mapping[str, Any]:
    """Lists of the collected values of all bodies, by name."""
    return {name: [row[name] for row in kept] for name in kept[0]} if kept else _Empty()


def choose(flag: Any, then: Callable[[], T] | T, otherwise: Callable[[], T] | T) -> T:
    """Select one of two values, or the result of one of two functions without arguments. Only that function runs."""
    if (tracer := context.tracer.get()) is not None:
        return tracer.choose(flag, then, otherwise)
    return arm(then if bool(flag) else otherwise)


def arm(value: Callable[[], T] | T) -> T:
    """The result of an arm of a choice."""
    return cast("T", value() if callable(value) else value)
