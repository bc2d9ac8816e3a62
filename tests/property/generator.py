"""Random programs: any mix of calls, states, lists, loops, streams, windows, eaches and choices, nested.

Most of what it makes is a valid walk; what breaks a rule of overlap is refused by the tracer and thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.property.program import COMPONENTS, KINDS, LoopPart, Program


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


class Choices:
    """A source of choices and of fresh names: `pick(n)` gives a number below n."""

    def __init__(self, pick: Callable[[int], int]) -> None:
        self.pick = pick
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def one_of(self, options: Any) -> Any:
        options = list(options)
        return options[self.pick(len(options))]


class Generator(Choices):
    """Builds one program."""

    def __init__(self, pick: Callable[[int], int]) -> None:
        super().__init__(pick)
        self.budget = 26

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
        setup: list[Any] = []
        steps: int | str = self.pick(6)
        if self.pick(3) == 0:
            steps = self.name("n")
            setup = [("call", [steps], self.one_of(COMPONENTS), "few", [self.one_of(scope.ints)])]
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
        return [*setup, ("loop", part)]

    def a_each(self, scope: Scope, opened: list[str]) -> list[Any]:
        setup: list[Any] = []
        if not scope.lists or self.pick(2):
            scope.lists.append(items := self.name("l"))
            setup = [("call", [items], "one", "split", [self.one_of(scope.ints)])]
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
        return [*setup, ("each", items, name, inner_body, collect)]

    def a_choose(self, scope: Scope, opened: list[str]) -> list[Any]:
        flag = self.name("f")
        setup = ("call", [flag], self.one_of(COMPONENTS), "flag", [self.one_of(scope.ints)])
        count = self.pick(3)
        arms: list[Any] = []
        for _ in range(2):
            inner = scope.inner(may_emit=False, reading=[])
            body = self.body(inner, self.pick(4))
            arms.append((body, [self.one_of(inner.ints) for _ in range(count)]))
        outs = [self.name("x") for _ in range(count)]
        scope.ints += outs
        return [setup, ("choose", flag, arms, outs)]

    def a_stream(self, scope: Scope, opened: list[str]) -> list[Any]:
        name = self.name("s")
        opened.append(name)
        scope.filling.append(name)
        value = self.one_of(scope.ints)
        inner = self.loop(scope, lambda inner: [("put", name, self.one_of(inner.ints))])
        return [("stream", name), *([("put", name, value)] if self.pick(2) else []), *inner]

    def a_reader(self, scope: Scope, opened: list[str]) -> list[Any]:
        mine = [stream for stream in opened if stream in (*scope.filling, *scope.reading)]
        if mine and scope.may_extend:
            return self.read(self.one_of(mine), scope)
        return self.a_get(scope, opened) if scope.reading else self.a_call(scope, opened)

    def read(self, stream: str, scope: Scope) -> list[Any]:
        if stream in scope.filling:
            scope.filling.remove(stream)
            scope.reading.append(stream)
        fresh = scope.inner(reading=[], filling=[s for s in scope.filling if s != stream])
        if self.pick(3) == 0:
            out, default = self.name("x"), self.one_of(scope.ints)
            inner = {"reading": [*scope.reading], "filling": fresh.filling}

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
        """Add a reader: every stream must have one."""
        body = self.read(stream, scope) if stream in scope.filling else []
        if stream in scope.reading:
            scope.reading.remove(stream)
        return body
