"""What an author writes between calls: `loop`, `Stream`, `windows`, `each`, `choose`.

Each acts on real values when the walk is simply run, and records a region when it is traced. The eager half, here, is
the meaning; the tracer and every runtime must give the same.
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
    """An object whose attributes are values of a region."""

    def _record_site(self, *whats: str) -> None:
        """While tracing, remember on which line of the author this was said."""
        if (tracer := context.tracer.get()) is not None:
            self.__dict__["_sites"].update(dict.fromkeys(whats, tracer.site()))

    def _require_open(self, method: str) -> None:
        """While tracing, complain about what has an effect only inside the body."""
        if (tracer := context.tracer.get()) is not None and not self.__dict__["_is_open"]:
            what = f"{method}(...) is called outside the body of its {type(self).__name__}, where it does nothing"
            tracer.problem(what, f"call it inside the body: for ... in s: s.{method}(...)")

    def _require_unused(self, names: Iterable[str], taken: Iterable[str]) -> None:
        """While tracing, complain about a name that would hide something else."""
        if (tracer := context.tracer.get()) is not None:
            for name in sorted({*names} & {*taken, *dir(type(self))}):
                what = f"`{name}` means something else in this {type(self).__name__}: it cannot be carried or collected"
                tracer.problem(what, f"use another name, such as every_{name}")

    def _unknown(self, name: str, what: str, fix: str) -> Any:
        if (tracer := context.tracer.get()) is not None:
            return tracer.problem(what, fix)
        raise AttributeError(f"{what}\n  fix: {fix}", name=name)


class loop(_Region):  # noqa: N801 - reads as a verb where it is used
    """`s = loop(steps=n, x=x0)`, then `for step in s:`; `s.x` is read and assigned inside, and is the last one after.

    Values cross iterations only this way. `s.stop_when(flag)` ends the loop after the iteration that sets the flag.
    `s.collect(y=value)` keeps a value of every iteration: afterwards `s.y` is the list of them.
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
        return self._unknown(name, what, f"loop(..., {name}=<its first value>)")

    def stop_when(self, flag: Any) -> None:
        """End the loop after this iteration if the flag is set. With several calls, any of them does."""
        self._require_open("stop_when")
        self.__dict__["_stops"].append(flag)
        self._record_site(f"stop {len(self.__dict__['_stops'])}")

    def collect(self, **values: Any) -> None:
        """Keep a value of this iteration."""
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
    """Values in order between two parts of a walk that run at the same time."""

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
        """The next value; once all that fills the stream has ended and everything is read, `default`."""
        if (tracer := context.tracer.get()) is not None:
            return tracer.get(self, default)
        if self._read == len(self._items):
            return default
        self._read += 1
        return self._items[self._read - 1]

    def items(self) -> list[Any]:
        """Everything that was put so far, when run eagerly."""
        return self._items


class windows:  # noqa: N801 - reads as a verb where it is used
    """`for window in windows(stream, size=28, stride=7)`: overlapping slices of a stream, as they fill.

    A window holds `size` items, advances by `stride` (default: `size`), and is preceded by up to `context` earlier
    items. The first may be smaller (`first`), so that output starts sooner. Windows that do not fill are dropped,
    unless `flush`: then what is left makes a last, shorter one. `fresh` counts the items that no earlier window held.
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
    """`e = each(items)`, then `for item in e:`: the bodies run side by side, once for each item.

    `e.collect(y=value)` keeps a value of each body: afterwards `e.y` is the list of them, in order. `items` is a list,
    or a tensor taken along its first axis; how many there are may differ per request.
    """

    def __init__(self, items: Any) -> None:
        self.items = items
        self.index = 0
        """Which item this body has."""
        self.kept: dict[str, Any] = {}
        self.lists: Mapping[str, Any] = {}
        self._is_open = False
        self._sites: dict[str, str] = {}
        self._record_site("each")

    def collect(self, **values: Any) -> None:
        """Keep a value of this body."""
        self._require_open("collect")
        self._require_unused(values, ("items", "index", "kept", "lists"))
        self.kept.update(values)
        self._record_site(*(f"collect {name}" for name in values))

    def __getattr__(self, name: str) -> Any:
        if name in self.lists:
            return self.lists[name]
        what = f"this each collects no `{name}`{suggest_name(name, self.lists)}; it collects {format_names(self.lists)}"
        return self._unknown(name, what, f"e.collect({name}=...) in its body")

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
    """What a region collected that ran no body: nothing, under whatever name it is asked for."""

    def __contains__(self, _: object) -> bool:
        return True

    def __missing__(self, _: str) -> list[Any]:
        return []


def collect_lists(kept: list[dict[str, Any]]) -> Mapping[str, Any]:
    """The values of all bodies, by name."""
    return {name: [row[name] for row in kept] for name in kept[0]} if kept else _Empty()


def choose(flag: Any, then: Callable[[], T] | T, otherwise: Callable[[], T] | T) -> T:
    """One of two: a value, or what a function without arguments gives. Only the chosen function runs."""
    if (tracer := context.tracer.get()) is not None:
        return tracer.choose(flag, then, otherwise)
    return arm(then if bool(flag) else otherwise)


def arm(given: Callable[[], T] | T) -> T:
    """What an arm of a choice gives."""
    return cast("T", given() if callable(given) else given)
