"""A model that runs any program as a walk.

A program is a tree of small tuples. `Program.go` interprets it with the public authoring API, so the same program is
run eagerly, traced and served. Values are ints that every op mixes irreversibly: a lost, stale, swapped or reordered
value changes everything after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mstar import (
    Action,
    Audio,
    Component,
    Image,
    Latents,
    Model,
    State,
    Static,
    Stream,
    Text,
    View,
    WordTimestamps,
    choose,
    each,
    loop,
    op,
    rows,
    stacked,
    walk,
    windows,
)

PRIME = 1_000_003
KINDS: tuple[Callable[[Any], Any], ...] = (
    Text,
    lambda v: Audio(v, rate=8000),
    Image,
    Latents,
    lambda v: Action(v, rate=10),
    WordTimestamps,
)


def _mix(*parts: int) -> int:
    total = 17
    for part in parts:
        total = (total * 31 + part + 7) * 48_271 % PRIME
    return total


class Memory(State):
    """Numbers that a component received from a request."""

    def __init__(self) -> None:
        self.seen: list[int] = []


class Alone(Component):
    """Ops that run one request at a time."""

    @op
    def mix(self, a: int, b: int) -> int:
        return _mix(a, b)

    @op
    def pair(self, a: int) -> tuple[int, int]:
        return _mix(a, 1), _mix(a, 2)

    @op
    def few(self, a: int) -> int:
        return a % 6

    @op
    def flag(self, a: int) -> bool:
        return a % 3 == 0

    @op
    def split(self, a: int) -> list[int]:
        return [_mix(a, k) for k in range(a % 4)]

    @op
    def fold(self, parts: list[int]) -> int:
        return _mix(len(parts), *parts)

    @op
    def tell(self, a: int, memory: Memory) -> int:
        memory.seen.append(a)
        return _mix(*memory.seen)

    @op
    def recall(self, a: int, memory: View[Memory]) -> int:
        return _mix(a, *memory.seen)


class Batched(Alone):
    """The same ops, written for batches."""

    @op(batch=stacked)
    def mix(self, a: int, b: int) -> int:
        return [_mix(x, y) for x, y in zip(rows(a), rows(b), strict=True)]  # type: ignore[return-value]

    @op(batch=stacked)
    def tell(self, a: int, memory: Memory) -> int:
        results = []
        for x, mine in zip(rows(a), rows(memory), strict=True):
            mine.seen.append(x)
            results.append(_mix(*mine.seen))
        return results  # type: ignore[return-value]

    @op(batch=stacked)
    def scaled(self, a: int, by: Static[int]) -> int:
        return [_mix(x, by) for x in rows(a)]  # type: ignore[return-value]


COMPONENTS = ("one", "two", "three")
"""Names of the components: the first runs one request at a time, the others batches."""


@dataclass
class LoopPart:
    """A loop of a program, with what it carries and collects by name."""

    name: str
    steps: int | str
    carry: dict[str, str]
    body: list[Any] = field(default_factory=list)
    nexts: dict[str, str] = field(default_factory=dict)
    stops: list[str] = field(default_factory=list)
    outs: dict[str, str] = field(default_factory=dict)
    collect: dict[str, str] = field(default_factory=dict)


class Program(Model):
    """Runs a program as a walk."""

    def __init__(self, body: list[Any], results: list[str]) -> None:
        self.one = Alone()
        self.two = Batched()
        self.three = Batched()
        self.body = body
        self.results = results

    @walk
    def go(self, a: int, b: int, memory: Memory) -> Iterator[Any]:
        env: dict[str, Any] = {"a": a, "b": b, "m": memory}
        yield from self.perform(self.body, env)
        return tuple(env[name] for name in self.results)  # type: ignore[return-value]

    @walk
    def look(self, a: int, memory: Memory) -> Any:
        return self.one.recall(a, memory)

    async def route(self, request: Any) -> Any:
        """Run the program twice over one state, then look at what it left there."""
        memory = self.one.state(Memory)
        first = await self.go(request, request + 1, memory)
        second = await self.go(request + 2, request, memory.fork())
        third = await self.go(request + 3, request, memory)
        return first, second, third, await self.look(request, memory)

    def perform(self, body: list[Any], env: dict[str, Any]) -> Iterator[Any]:
        for statement in body:
            kind, *rest = statement
            yield from getattr(self, f"do_{kind}")(env, *rest) or ()

    def do_call(self, env: dict[str, Any], outs: list[str], component: str, name: str, args: list[Any]) -> None:
        given = [env[arg] if isinstance(arg, str) else arg for arg in args]
        result = getattr(getattr(self, component), name)(*given)
        env.update(zip(outs, result if len(outs) > 1 else (result,), strict=True))

    def do_new(self, env: dict[str, Any], out: str, component: str) -> None:
        env[out] = getattr(self, component).state(Memory)

    def do_fork(self, env: dict[str, Any], out: str, source: str) -> None:
        env[out] = env[source].fork()

    def do_take(self, env: dict[str, Any], out: str, source: str, index: str) -> None:
        env[out] = env[source][env[index]]

    def do_stream(self, env: dict[str, Any], name: str) -> None:
        env[name] = Stream(name)

    def do_put(self, env: dict[str, Any], stream: str, value: str) -> None:
        env[stream].put(env[value])

    def do_get(self, env: dict[str, Any], out: str, stream: str, default: str) -> None:
        env[out] = env[stream].get(default=env[default])

    def do_emit(self, env: dict[str, Any], kind: int, value: str) -> Iterator[Any]:
        yield KINDS[kind](env[value])

    def do_loop(self, env: dict[str, Any], part: LoopPart) -> Iterator[Any]:
        steps = env[part.steps] if isinstance(part.steps, str) else part.steps
        s = loop(steps=steps, **{name: env[init] for name, init in part.carry.items()})
        for step in s:
            inside = env | {f"{part.name}.step": step} | {name: getattr(s, name) for name in part.carry}
            yield from self.perform(part.body, inside)
            for name, source in part.nexts.items():
                setattr(s, name, inside[source])
            s.collect(**{name: inside[source] for name, source in part.collect.items()})
            for flag in part.stops:
                s.stop_when(inside[flag])
        env.update({out: getattr(s, name) for name, out in part.outs.items()})
        env.update({name: getattr(s, name) for name in part.collect})

    def do_windows(
        self, env: dict[str, Any], stream: str, sizes: dict[str, Any], name: str, body: list[Any]
    ) -> Iterator[Any]:
        w = windows(env[stream], **sizes)
        for item in w:
            yield from self.perform(body, env | {f"{name}.item": item, f"{name}.fresh": w.fresh})

    def do_each(
        self, env: dict[str, Any], items: str, name: str, body: list[Any], collect: dict[str, str]
    ) -> Iterator[Any]:
        e = each(env[items])
        for item in e:
            inside = env | {f"{name}.item": item, f"{name}.index": e.index}
            yield from self.perform(body, inside)
            for key, source in collect.items():
                e.collect(**{key: inside[source]})
        env.update({key: getattr(e, key) for key in collect})

    def do_choose(
        self, env: dict[str, Any], flag: str, arms: list[tuple[list[Any], list[str]]], outs: list[str]
    ) -> None:
        def arm(body: list[Any], results: list[str]) -> Any:
            inside = dict(env)
            for _ in self.perform(body, inside):
                raise AssertionError("arms do not emit")
            return tuple(inside[name] for name in results)

        then, otherwise = ((lambda body=body, results=results: arm(body, results)) for body, results in arms)
        env.update(zip(outs, choose(env[flag], then, otherwise), strict=True))
