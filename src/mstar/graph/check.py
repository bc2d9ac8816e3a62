"""Verifier of walk graphs: names, scopes, types and states, node by node.

The tracer creates well-formed graphs, so these problems occur only in graphs from other sources (JSON, tools). Races
and deadlocks of a well-formed graph are checked by `overlap`.
"""

from __future__ import annotations

from collections.abc import Iterable

from mstar.errors import Problem
from mstar.graph.ir import (
    Arm,
    Call,
    Choose,
    Const,
    Each,
    Emit,
    Field,
    Fork,
    Get,
    Loop,
    New,
    Node,
    Open,
    Put,
    Take,
    Value,
    Walk,
    Windows,
    binds,
    defines,
    operands,
)
from mstar.graph.overlap import check_overlap
from mstar.graph.types import INT, ListType, StateType, Type, accepts, is_flag, item_of, stacked_type


def check(walk: Walk) -> list[Problem]:
    """All problems of a walk; an empty list means that it can be served."""
    checker = _Checker(walk)
    checker.walk()
    return checker.problems + check_overlap(walk)


class _Checker:
    def __init__(self, walk: Walk) -> None:
        self.subject = walk
        self.problems: list[Problem] = []
        self.defined: set[str] = set()
        self.streams: dict[str, Type] = {}

    def walk(self) -> None:
        walk = self.subject
        self.bind(walk.inputs, walk.site)
        scope = {value.name: value.type for value in walk.inputs}
        self.use(walk.outputs, self.body(walk.body, scope), walk.site)

    def add_problem(self, site: str, what: str, fix: str) -> None:
        self.problems.append(Problem(site, f"walk `{self.subject.name}`: {what}", fix))

    def bind(self, values: Iterable[Value], site: str) -> None:
        for value in values:
            if value.name in self.defined:
                self.add_problem(site, f"{value} is defined twice", "give each value a unique name")
            self.defined.add(value.name)

    def use(self, values: Iterable[Value], scope: dict[str, Type], site: str) -> None:
        for value in values:
            if value.name not in scope:
                fix = "use it in the body that defines it, or pass it out by a carry, a collection or an arm's result"
                self.add_problem(site, f"{value} is not defined in this scope", fix)
            elif scope[value.name] != value.type:
                what = f"{value} is defined as {scope[value.name]} and used as {value.type}"
                self.add_problem(site, what, "use it with the type of its definition")

    def body(self, body: tuple[Node, ...], outer: dict[str, Type]) -> dict[str, Type]:
        scope = dict(outer)
        streams = dict(self.streams)
        for node in body:
            self.use(operands(node), scope, node.site)
            self.bind((*binds(node), *defines(node)), node.site)
            if isinstance(node, Open):
                if node.stream in self.streams:
                    self.add_problem(
                        node.site, f"stream ~{node.stream} is opened twice", "give each stream a unique name"
                    )
                self.streams[node.stream] = node.item
            self.node(node, scope)
            scope.update({value.name: value.type for value in defines(node)})
        self.streams = streams
        return scope

    def node(self, node: Node, scope: dict[str, Type]) -> None:  # noqa: C901 - a case for each node
        match node:
            case Loop():
                self.loop(node, scope)
            case Windows():
                self.windows(node, scope)
            case Each():
                self.each(node, scope)
            case Choose():
                self.choose(node, scope)
            case Call():
                arguments = {arg.name for _, arg in node.args if isinstance(arg, Value)}
                for value in node.extends:
                    if value.name not in arguments or not isinstance(value.type, StateType):
                        what = f"{value} is extended but is not a state argument"
                        self.add_problem(node.site, what, "extend only state arguments")
            case New() | Fork():
                self.require_state(node.out, StateType, node.site)
            case Take():
                self.take(node)
            case Put():
                self.reject_state(node.value, "put into a stream", node.site)
                self.check_stream_item(node.stream, node.value.type, node.site)
            case Get():
                self.check_stream_item(node.stream, node.default.type, node.site)
                self.check_stream_item(node.stream, node.out.type, node.site)
            case Emit():
                self.reject_state(node.value, "emitted", node.site)
            case Const() | Field() | Open():
                pass

    def require_state(self, value: Value, expected: type, site: str) -> None:
        if not isinstance(value.type, expected):
            self.add_problem(site, f"{value} is {value.type}, not a state", "give it a state type")

    def reject_state(self, value: Value, done: str, site: str) -> None:
        if isinstance(value.type, StateType):
            self.add_problem(site, f"{value} is a state and cannot be {done}", "pass states to ops only")

    def check_stream_item(self, stream: str, item: Type, site: str) -> None:
        if stream not in self.streams:
            self.add_problem(
                site, f"stream ~{stream} is not open in this scope", "open it first, in this body or an outer one"
            )
        elif not accepts(self.streams[stream], item):
            what = f"stream ~{stream} has items of type {self.streams[stream]}, not {item}"
            self.add_problem(site, what, "use one type per stream")

    def require_same_type(self, site: str, what: str, expected: Type | None, actual: Type) -> None:
        if expected != actual:
            self.add_problem(site, f"{what} is {actual}, not {expected}", "make the two types equal")

    def take(self, node: Take) -> None:
        self.require_same_type(node.site, f"index {node.index}", INT, node.index.type)
        self.require_same_type(node.site, f"element {node.out}", item_of(node.src.type), node.out.type)

    def loop(self, node: Loop, scope: dict[str, Type]) -> None:
        if isinstance(node.steps, Value):
            self.require_same_type(node.site, f"steps {node.steps}", INT, node.steps.type)
        self.require_same_type(node.site, f"step {node.step}", INT, node.step.type)
        for carry in node.carry:
            self.reject_state(carry.init, "carried by a loop", node.site)
            self.require_same_type(node.site, f"carry `{carry.name}`: {carry.out}", carry.inner.type, carry.out.type)
            for part in (carry.init, carry.next):
                if not accepts(carry.inner.type, part.type):
                    self.require_same_type(node.site, f"carry `{carry.name}`: {part}", carry.inner.type, part.type)
        inside = self.inside(node, node.body, scope)
        self.use((carry.next for carry in node.carry), inside, node.site)
        self.collected(node, inside)
        self.use(node.stop, inside, node.site)
        for flag in node.stop:
            self.flag(flag, node.site)

    def flag(self, flag: Value, site: str) -> None:
        if not is_flag(flag.type):
            self.add_problem(site, f"{flag} is {flag.type}, not a bool", "use a bool, or a bool tensor of one element")

    def windows(self, node: Windows, scope: dict[str, Type]) -> None:
        if not (1 <= node.stride <= node.size and 1 <= node.first <= node.size):
            sizes = f"size={node.size} stride={node.stride} first={node.first}"
            fix = "use 1 <= stride <= size and 1 <= first <= size"
            self.add_problem(node.site, f"these windows skip items or never fill: {sizes}", fix)
        if node.stream in self.streams:
            uniform = node.first == node.size and not node.flush
            item = self.streams[node.stream]
            if uniform or not isinstance(stacked_type(item, 1), type(node.item.type)):
                self.require_same_type(node.site, f"window {node.item}", stacked_type(item, node.size), node.item.type)
        else:
            self.check_stream_item(node.stream, node.item.type, node.site)
        self.require_same_type(node.site, f"fresh {node.fresh}", INT, node.fresh.type)
        self.inside(node, node.body, scope)

    def each(self, node: Each, scope: dict[str, Type]) -> None:
        self.require_same_type(node.site, f"item {node.item}", item_of(node.items.type), node.item.type)
        self.require_same_type(node.site, f"index {node.index}", INT, node.index.type)
        self.collected(node, self.inside(node, node.body, scope))

    def collected(self, node: Loop | Each, inside: dict[str, Type]) -> None:
        for collect in node.collect:
            self.reject_state(collect.inner, "collected", node.site)
            self.use((collect.inner,), inside, node.site)
            self.require_same_type(
                node.site, f"collection {collect.out}", ListType(collect.inner.type), collect.out.type
            )

    def choose(self, node: Choose, scope: dict[str, Type]) -> None:
        self.flag(node.flag, node.site)
        for arm in (node.then, node.otherwise):
            inside = self.body(arm.body, scope)
            self.use(arm.results, inside, node.site)
            self.arm(node, arm)

    def arm(self, node: Choose, arm: Arm) -> None:
        if len(arm.results) != len(node.outs):
            what = f"an arm returns {len(arm.results)} values, the choice has {len(node.outs)}"
            self.add_problem(node.site, what, "return the same number of values from both arms")
            return
        for value, out in zip(arm.results, node.outs, strict=True):
            self.reject_state(value, "the result of an arm", node.site)
            if not accepts(out.type, value.type):
                self.require_same_type(node.site, f"arm result {value}", out.type, value.type)

    def inside(self, node: Node, body: tuple[Node, ...], scope: dict[str, Type]) -> dict[str, Type]:
        return self.body(body, scope | {value.name: value.type for value in binds(node)})
