"""Random walks: a generator of programs, and a model that runs any of them.

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
)


def _mix(*parts: int) -> int:
    total = 17
    for part in parts:
        total = (total * 31 + part + 7) * 48_271 % PRIME
    return total


class Memory(State):
    """What a request told a component so far."""

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
        told = []
        for x, mine in zip(rows(a), rows(memory), strict=True):
            mine.seen.append(x)
            told.append(_mix(*mine.seen))
        return told  # type: ignore[return-value]

    @op(batch=stacked)
    def scaled(self, a: int, by: Static[int]) -> int:
        return [_mix(x, by) for x in rows(a)]  # type: ignore[return-value]


COMPONENTS = ("one", "two", "three")


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

    def do_windows(self, env: dict[str, Any], stream: str, sizes: dict[str, Any], name: str, body: list[Any]) -> Iterator[Any]:
        w = windows(env[stream], **sizes)
        for item in w:
            yield from self.perform(body, env | {f"{name}.item": item, f"{name}.fresh": w.fresh})

    def do_each(self, env: dict[str, Any], items: str, name: str, body: list[Any], collect: dict[str, str]) -> Iterator[Any]:
        e = each(env[items])
        for item in e:
            inside = env | {f"{name}.item": item, f"{name}.index": e.index}
            yield from self.perform(body, inside)
            for key, source in collect.items():
                e.collect(**{key: inside[source]})
        env.update({key: getattr(e, key) for key in collect})

    def do_choose(self, env: dict[str, Any], flag: str, arms: list[tuple[list[Any], list[str]]], outs: list[str]) -> None:
        def arm(body: list[Any], results: list[str]) -> Any:
            inside = dict(env)
            for _ in self.perform(body, inside):
                raise AssertionError("arms do not emit")
            return tuple(inside[name] for name in results)

        then, otherwise = ((lambda body=body, results=results: arm(body, results)) for body, results in arms)
        env.update(zip(outs, choose(env[flag], then, otherwise), strict=True))


@dataclass
class LoopPart:
    name: str
    steps: int | str
    carry: dict[str, str]
    body: list[Any] = field(default_factory=list)
    nexts: dict[str, str] = field(default_factory=dict)
    stops: list[str] = field(default_factory=list)
    outs: dict[str, str] = field(default_factory=dict)
    collect: dict[str, str] = field(default_factory=dict)


@dataclass
class Scope:
    """What a body being generated may use."""

    ints: list[str]
    lists: list[str]
    states: dict[str, str]
    filling: list[str]
    reading: list[str]
    may_emit: bool = True
    may_extend: bool = True
    depth: int = 0

    def inner(self, **changes: Any) -> Scope:
        copy = Scope([*self.ints], [*self.lists], dict(self.states), [*self.filling], [*self.reading])
        copy.may_emit, copy.may_extend, copy.depth = self.may_emit, self.may_extend, self.depth + 1
        for key, value in changes.items():
            setattr(copy, key, value)
        return copy


class Generator:
    """Builds one program from a source of choices: `pick(n)` gives a number below n."""

    def __init__(self, pick: Callable[[int], int]) -> None:
        self.pick = pick
        self.count = 0
        self.budget = 26

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def one_of(self, options: Any) -> Any:
        options = list(options)
        return options[self.pick(len(options))]

    def program(self) -> Program:
        scope = Scope(["a", "b"], [], {"m": "one"}, [], [])
        body = self.body(scope, 3 + self.pick(6))
        return Program(body, [self.one_of(scope.ints) for _ in range(1 + self.pick(2))])

    def body(self, scope: Scope, length: int) -> list[Any]:
        opened: list[str] = []
        body: list[Any] = []
        for _ in range(length):
            self.budget -= 1
            if self.budget < 0:
                break
            body += self.statement(scope, opened)
        for stream in opened:
            body += self.close(stream, scope)
        return body

    def statement(self, scope: Scope, opened: list[str]) -> list[Any]:
        kinds = ["call", "call", "call", "memory", "memory", "list"]
        if scope.depth < 3:
            kinds += ["loop", "loop", "each", "choose", "stream"]
        if scope.filling:
            kinds += ["put", "filler", "reader"]
        if scope.reading and scope.may_extend:
            kinds += ["reader", "get"]
        if scope.may_emit:
            kinds += ["emit"]
        return getattr(self, f"a_{self.one_of(kinds)}")(scope, opened)

    def a_call(self, scope: Scope, opened: list[str]) -> list[Any]:
        component = self.one_of(COMPONENTS)
        form = self.pick(4)
        if form == 0:
            outs = [self.name("x"), self.name("x")]
            scope.ints += outs
            return [("call", outs, component, "pair", [self.one_of(scope.ints[:-2])])]
        out = self.name("x")
        args = [self.one_of(scope.ints), self.one_of(scope.ints) if self.pick(4) else self.pick(5)]
        name = "mix"
        if form == 1:
            component, name, args = self.one_of(COMPONENTS[1:]), "scaled", [args[0], self.pick(2)]
        scope.ints.append(out)
        return [("call", [out], component, name, args)]

    def a_memory(self, scope: Scope, opened: list[str]) -> list[Any]:
        form = self.pick(5)
        if form == 0 or not scope.states:
            name, component = self.name("m"), self.one_of(COMPONENTS)
            scope.states[name] = component
            scope.ints.append(out := self.name("x"))
            return [("new", name, component), ("call", [out], component, "tell", [scope.ints[0], name])]
        state = self.one_of(scope.states)
        if form == 1:
            name = self.name("m")
            scope.states[name] = scope.states[state]
            scope.ints.append(out := self.name("x"))
            return [("fork", name, state), ("call", [out], scope.states[state], "tell", [scope.ints[0], name])]
        verb = "tell" if form < 4 and scope.may_extend else "recall"
        args = [self.one_of(scope.ints), state]
        scope.ints.append(out := self.name("x"))
        return [("call", [out], scope.states[state], verb, args)]

    def a_list(self, scope: Scope, opened: list[str]) -> list[Any]:
        component = self.one_of(COMPONENTS)
        if scope.lists and self.pick(2):
            scope.ints.append(out := self.name("x"))
            return [("call", [out], component, "fold", [self.one_of(scope.lists)])]
        scope.lists.append(out := self.name("l"))
        return [("call", [out], component, "split", [self.one_of(scope.ints)])]

    def a_emit(self, scope: Scope, opened: list[str]) -> list[Any]:
        return [("emit", self.pick(len(KINDS)), self.one_of(scope.ints))]

    def a_put(self, scope: Scope, opened: list[str]) -> list[Any]:
        return [("put", self.one_of(scope.filling), self.one_of(scope.ints))]

    def a_get(self, scope: Scope, opened: list[str]) -> list[Any]:
        stream, default = self.one_of(scope.reading), self.one_of(scope.ints)
        scope.ints.append(out := self.name("x"))
        return [("get", out, stream, default)]

    def a_loop(self, scope: Scope, opened: list[str]) -> list[Any]:
        return self.loop(scope, lambda inner: [])

    def a_filler(self, scope: Scope, opened: list[str]) -> list[Any]:
        stream = self.one_of(scope.filling)
        return self.loop(scope, lambda inner: [("put", stream, self.one_of(inner.ints))])

    def loop(self, scope: Scope, extra: Callable[[Scope], list[Any]], **changes: Any) -> list[Any]:
        name = self.name("loop")
        carry = {self.name("c"): self.one_of(scope.ints) for _ in range(self.pick(3))}
        lead: list[Any] = []
        steps: int | str = self.pick(6)
        if self.pick(3) == 0:
            lead = [("call", [lst := self.name("l")], "one", "split", [self.one_of(scope.ints)])]
            part_items = self.name("n")
            lead += [("call", [part_items], "one", "fold", [lst])]
        part = LoopPart(name, steps, carry)
        inner = scope.inner(**changes)
        inner.ints += [f"{name}.step", *carry]
        part.body = self.body(inner, 1 + self.pick(4)) + extra(inner)
        part.nexts = {key: self.one_of(inner.ints) for key in carry}
        if self.pick(2):
            flag = self.name("f")
            part.body.append(("call", [flag], self.one_of(COMPONENTS), "flag", [self.one_of(inner.ints)]))
            part.stops.append(flag)
        part.outs = {key: self.name("x") for key in carry}
        part.collect = {self.name("g"): self.one_of(inner.ints) for _ in range(self.pick(2))}
        scope.ints += part.outs.values()
        scope.lists += part.collect
        return [*lead, ("loop", part)]

    def a_each(self, scope: Scope, opened: list[str]) -> list[Any]:
        lead: list[Any] = []
        if not scope.lists or self.pick(2):
            scope.lists.append(items := self.name("l"))
            lead = [("call", [items], "one", "split", [self.one_of(scope.ints)])]
        items, name = self.one_of(scope.lists), self.name("each")
        inner = scope.inner(may_emit=False, may_extend=False, filling=[], reading=[])
        inner.ints += [f"{name}.item", f"{name}.index"]
        own = self.name("m")
        source = self.one_of([*scope.states, ""])
        state = ("fork", own, source) if source else ("new", own, "two")
        inner_body: list[Any] = [state]
        owner = scope.states[source] if source else "two"
        inner_body.append(("call", [out := self.name("x")], owner, "tell", [f"{name}.item", own]))
        inner.ints.append(out)
        inner_body += self.body(inner, self.pick(4))
        collect = {self.name("g"): self.one_of(inner.ints) for _ in range(1 + self.pick(2))}
        scope.lists += collect
        return [*lead, ("each", items, name, inner_body, collect)]

    def a_choose(self, scope: Scope, opened: list[str]) -> list[Any]:
        flag = self.name("f")
        lead = ("call", [flag], self.one_of(COMPONENTS), "flag", [self.one_of(scope.ints)])
        count = self.pick(3)
        arms: list[Any] = []
        for _ in range(2):
            inner = scope.inner(may_emit=False, reading=[])
            body = self.body(inner, self.pick(4))
            arms.append((body, [self.one_of(inner.ints) for _ in range(count)]))
        outs = [self.name("x") for _ in range(count)]
        scope.ints += outs
        return [lead, ("choose", flag, arms, outs)]

    def a_stream(self, scope: Scope, opened: list[str]) -> list[Any]:
        name = self.name("s")
        opened.append(name)
        scope.filling.append(name)
        value = self.one_of(scope.ints)
        inner = self.loop(scope, lambda inner: [("put", name, self.one_of(inner.ints))])
        return [("stream", name), *([("put", name, value)] if self.pick(2) else []), *inner]

    def a_reader(self, scope: Scope, opened: list[str]) -> list[Any]:
        stream = self.one_of([*(s for s in opened if s in (*scope.filling, *scope.reading)), *scope.reading] or [""])
        if not stream or not scope.may_extend:
            return self.a_call(scope, opened)
        return self.read(stream, scope)

    def read(self, stream: str, scope: Scope) -> list[Any]:
        if stream in scope.filling:
            scope.filling.remove(stream)
            scope.reading.append(stream)
        fresh = scope.inner(reading=[], filling=[s for s in scope.filling if s != stream])
        if self.pick(3) == 0:
            out, default = self.name("x"), self.one_of(scope.ints)
            inner = {"reading": [], "filling": fresh.filling}

            def getting(body: Scope) -> list[Any]:
                body.ints.append(out)
                return [("get", out, stream, default), ("call", [self.name("x")], "two", "mix", [out, out])]

            return self.loop(scope, getting, **inner)
        size = 1 + self.pick(4)
        sizes: dict[str, Any] = {"size": size, "stride": 1 + self.pick(size), "context": self.pick(3)}
        sizes |= {"first": 1 + self.pick(size), "flush": bool(self.pick(2))}
        name = self.name("win")
        fresh.ints.append(f"{name}.fresh")
        fresh.lists.append(f"{name}.item")
        fresh.ints.append(out := self.name("x"))
        body = [("call", [out], self.one_of(COMPONENTS), "fold", [f"{name}.item"]), *self.body(fresh, self.pick(4))]
        return [("windows", stream, sizes, name, body)]

    def close(self, stream: str, scope: Scope) -> list[Any]:
        """A stream must be read by somebody."""
        body = self.read(stream, scope) if stream in scope.filling else []
        if stream in scope.reading:
            scope.reading.remove(stream)
        return body
