"""Lowering of a walk to SSA form: numbered values, versioned states, explicit region wiring.

In the graph, `decode(token, kv=!kv)` changes `kv`. Lowered, the call uses one version of `kv` and makes the next, so
that a state moves between workers like any other value: from where a version is made to where it is used. A stream
becomes a writer and readers, which are values that steps use. Lowering does not depend on the placement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mstar.graph import ir
from mstar.graph.flow import access, fills, order
from mstar.graph.types import BOOL, INT, ObjectType, StateType, Type

STREAM_END = ObjectType("stream end")
"""Type of a stream's writer and readers."""


@dataclass(eq=False, repr=False, slots=True)
class Val:
    """A value, or one version of a state, in the body where it is made."""

    number: int
    name: str
    type: Type
    body: Body
    maker: Step | None = None
    carry: Carried | None = None
    """Set on a carried value inside its loop."""
    extended_from: Val | None = None
    """Version of a state that a call extended in place to make this one."""
    is_counter: bool = False
    """Whether it is a step or index: every participating seat counts on its own."""


@dataclass(eq=False, repr=False, slots=True)
class Carried:
    """A value carried between iterations: a carry of the walk, or a state that the body extends."""

    init: Val
    inner: Val
    next: Val
    out: Val


@dataclass(eq=False, repr=False, slots=True)
class Choice:
    """A result of a choice, and the value of each arm (a phi node)."""

    out: Val
    then: Val
    otherwise: Val


@dataclass(eq=False, repr=False, slots=True)
class Step:
    """One step of a body. `before` are the indexes of the steps in the same body that must end first."""

    kind: str
    node: ir.Node
    body: Body
    index: int
    uses: list[Val] = field(default_factory=list[Val])
    makes: list[Val] = field(default_factory=list[Val])
    before: set[int] = field(default_factory=set[int])
    inner: list[Body] = field(default_factory=list["Body"])
    carries: list[Carried] = field(default_factory=list[Carried])
    choices: list[Choice] = field(default_factory=list[Choice])
    collects: list[tuple[Val, Val]] = field(default_factory=list[tuple[Val, Val]])
    stops: list[Val] = field(default_factory=list[Val])
    window: list[Val] = field(default_factory=list[Val])
    """Windows region: whether there is one more window, the window, and its number of new items."""
    control: Val | None = None
    """Value that every participating seat needs to follow the region: steps, a flag or a count."""


@dataclass(eq=False, repr=False, slots=True)
class Body:
    """Steps that run once, or once per iteration of the region `owner`."""

    number: int
    owner: Step | None
    steps: list[Step] = field(default_factory=list[Step])
    counter: Val | None = None

    def depth(self) -> int:
        """Number of enclosing regions."""
        return 0 if self.owner is None else 1 + self.owner.body.depth()


@dataclass(eq=False, repr=False, slots=True)
class Lowered:
    """A lowered walk."""

    walk: ir.Walk
    root: Body
    inputs: list[Val]
    outputs: list[Val]
    final_states: list[tuple[int, Val]]
    """Input index and last version of each input that is a state."""
    readers: dict[str, list[Step]]
    """Steps that make the readers of each stream, in order."""


def lower(walk: ir.Walk) -> Lowered:
    """Lower a walk that has passed its checks."""
    lowering = _Lowering()
    root = lowering.new_body(None)
    env = {value.name: lowering.new(value.name, value.type, root) for value in walk.inputs}
    inputs = list(env.values())
    lowering.lower_body(root, walk.body, env)
    outputs = [env[value.name] for value in walk.outputs]
    states = [(i, env[v.name]) for i, v in enumerate(walk.inputs) if isinstance(v.type, StateType)]
    return Lowered(walk, root, inputs, outputs, states, lowering.readers)


class _Lowering:
    def __init__(self) -> None:
        self.values = 0
        self.bodies = 0
        self.writers: dict[str, Val] = {}
        self.getters: dict[str, Val] = {}
        self.readers: dict[str, list[Step]] = {}

    def new_body(self, owner: Step | None) -> Body:
        self.bodies += 1
        return Body(self.bodies - 1, owner)

    def new(self, name: str, type_: Type, body: Body, maker: Step | None = None) -> Val:
        self.values += 1
        return Val(self.values - 1, name, type_, body, maker)

    def make_value(self, step: Step, value: ir.Value, env: dict[str, Val]) -> Val:
        val = self.new(value.name, value.type, step.body, step)
        step.makes.append(val)
        env[value.name] = val
        return val

    def add_implicit_step(self, body: Body, kind: str, node: ir.Node, uses: list[Val], name: str, type_: Type) -> Step:
        """Add a step that the graph implies. It makes one value unless `name` is empty."""
        step = Step(kind, node, body, len(body.steps), uses)
        body.steps.append(step)
        if name:
            step.makes.append(self.new(name, type_, body, step))
        return step

    def lower_body(self, body: Body, nodes: tuple[ir.Node, ...], env: dict[str, Val]) -> None:
        """Lower the nodes of a body. Afterwards `env` has the last version of every state."""
        offset = len(body.steps)  # the implicit take of an each comes first
        waits = order(nodes)
        for index, node in enumerate(nodes):
            step = Step(_KIND[type(node)], node, body, offset + index)
            step.before = {offset + wait for wait in waits[index]}
            body.steps.append(step)
        for step, node in list(zip(body.steps[offset:], nodes, strict=True)):
            self.step(step, node, env)
        for node in nodes:
            if isinstance(node, ir.Open):
                self.finish_stream(body, nodes, node, offset)

    def finish_stream(self, body: Body, nodes: tuple[ir.Node, ...], opened: ir.Open, offset: int) -> None:
        """Close a stream after its last put, and detach its reader after its last get."""
        close = self.add_implicit_step(body, "close", opened, [self.writers[opened.stream]], "", STREAM_END)
        close.before = {offset + i for i, node in enumerate(nodes) if opened.stream in fills(node)}
        gets = {offset + i for i, node in enumerate(nodes) if ("get", opened.stream) in access(node).extends}
        if gets:
            detach = self.add_implicit_step(body, "detach", opened, [self.getters[opened.stream]], "", STREAM_END)
            detach.before = gets

    def step(self, step: Step, node: ir.Node, env: dict[str, Val]) -> None:  # noqa: C901 - a case for each node
        step.uses = [env[value.name] for value in ir.operands(node)]
        match node:
            case ir.Call():
                for out in node.outs:
                    self.make_value(step, out, env)
                for state in node.extends:
                    before = env[state.name]
                    self.make_value(step, state, env).extended_from = before
            case ir.New() | ir.Fork() | ir.Const() | ir.Take() | ir.Field():
                self.make_value(step, node.out, env)
            case ir.Open():
                self.open(step, node)
            case ir.Put():
                step.uses.append(self.writers[node.stream])
            case ir.Get():
                if node.stream not in self.getters:
                    self.getters[node.stream] = self.reader(node)
                step.uses.append(self.getters[node.stream])
                self.make_value(step, node.out, env)
            case ir.Emit():
                pass
            case ir.Loop():
                self.loop(step, node, env)
            case ir.Windows():
                self.windows(step, node, env)
            case ir.Each():
                self.each(step, node, env)
            case ir.Choose():
                self.choose(step, node, env)

    def open(self, step: Step, node: ir.Open) -> None:
        writer = self.new(f"~{node.stream}", STREAM_END, step.body, step)
        step.makes.append(writer)
        self.writers[node.stream] = writer
        self.readers[node.stream] = []

    def reader(self, node: ir.Get | ir.Windows) -> Val:
        opened = self.writers[node.stream].body
        step = self.add_implicit_step(opened, "reader", node, [], f"~{node.stream}", STREAM_END)
        self.readers[node.stream].append(step)
        return step.makes[0]

    def enter(self, step: Step) -> Body:
        body = self.new_body(step)
        step.inner.append(body)
        return body

    def states_inside(self, node: ir.Node, body: Body, env: dict[str, Val]) -> dict[str, Val]:
        """Version of each extended state at the start of an iteration."""
        return {name: self.new(name, env[name].type, body) for name in _extended(node, env)}

    def carry(self, step: Step, init: Val, inner: Val, next_: Val, out: Val) -> None:
        inner.carry = Carried(init, inner, next_, out)
        step.carries.append(inner.carry)

    def carry_states(self, step: Step, env: dict[str, Val], inside: dict[str, Val], start: dict[str, Val]) -> None:
        for name, inner in start.items():
            init = env[name]
            self.carry(step, init, inner, inside[name], self.version(step, name, env))

    def version(self, step: Step, name: str, env: dict[str, Val]) -> Val:
        """New version of a state after a region."""
        out = self.new(name, env[name].type, step.body, step)
        step.makes.append(out)
        env[name] = out
        return out

    def loop(self, step: Step, node: ir.Loop, env: dict[str, Val]) -> None:
        body = self.enter(step)
        step.control = env[node.steps.name] if isinstance(node.steps, ir.Value) else None
        step.uses = [step.control] if step.control is not None else []
        body.counter = self.new(node.step.name, INT, body)
        body.counter.is_counter = True
        start = self.states_inside(node, body, env)
        inner = {carry.name: self.new(carry.inner.name, carry.inner.type, body) for carry in node.carry}
        inside = env | start | {node.step.name: body.counter}
        inside |= {carry.inner.name: inner[carry.name] for carry in node.carry}
        self.lower_body(body, node.body, inside)
        for carry in node.carry:
            init, next_ = env[carry.init.name], inside[carry.next.name]
            self.carry(step, init, inner[carry.name], next_, self.make_value(step, carry.out, env))
        self.collect(step, node, env, inside)
        self.carry_states(step, env, inside, start)
        step.stops = [inside[flag.name] for flag in node.stop]

    def windows(self, step: Step, node: ir.Windows, env: dict[str, Val]) -> None:
        reader = self.reader(node)
        step.uses = [reader]
        body = self.enter(step)
        start = self.states_inside(node, body, env)
        inside = env | start
        more = self.new("more", BOOL, body, step)
        inside[node.item.name] = self.new(node.item.name, node.item.type, body, step)
        inside[node.fresh.name] = self.new(node.fresh.name, INT, body, step)
        step.window = [more, inside[node.item.name], inside[node.fresh.name]]
        self.lower_body(body, node.body, inside)
        self.carry_states(step, env, inside, start)

    def each(self, step: Step, node: ir.Each, env: dict[str, Val]) -> None:
        items = env[node.items.name]
        count = self.add_implicit_step(step.body, "count", node, [items], f"{node.items.name}.count", INT)
        step.control = count.makes[0]
        step.uses = [step.control]
        body = self.enter(step)
        body.counter = self.new(node.index.name, INT, body)
        body.counter.is_counter = True
        take = self.add_implicit_step(body, "take", node, [items, body.counter], node.item.name, node.item.type)
        inside = env | {node.index.name: body.counter, node.item.name: take.makes[0]}
        self.lower_body(body, node.body, inside)
        self.collect(step, node, env, inside)

    def collect(self, step: Step, node: ir.Loop | ir.Each, env: dict[str, Val], inside: dict[str, Val]) -> None:
        for collect in node.collect:
            step.collects.append((inside[collect.inner.name], self.make_value(step, collect.out, env)))

    def choose(self, step: Step, node: ir.Choose, env: dict[str, Val]) -> None:
        step.control = env[node.flag.name]
        names = list(_extended(node, env))
        ends: list[dict[str, Val]] = []
        for arm in (node.then, node.otherwise):
            inside = dict(env)
            self.lower_body(self.enter(step), arm.body, inside)
            ends.append(inside)
        for then, otherwise, out in zip(node.then.results, node.otherwise.results, node.outs, strict=True):
            parts = ends[0][then.name], ends[1][otherwise.name]
            step.choices.append(Choice(self.make_value(step, out, env), *parts))
        for name in names:
            parts = ends[0][name], ends[1][name]
            step.choices.append(Choice(self.version(step, name, env), *parts))


def _extended(node: ir.Node, env: dict[str, Val]) -> Iterator[str]:
    """Names of outer states that a region's body extends."""
    return (name for end, name in sorted(access(node).extends) if end == "state" and name in env)


_KIND = {
    ir.Call: "call",
    ir.New: "new",
    ir.Fork: "fork",
    ir.Const: "const",
    ir.Take: "take",
    ir.Field: "field",
    ir.Open: "writer",
    ir.Put: "put",
    ir.Get: "get",
    ir.Emit: "emit",
    ir.Loop: "loop",
    ir.Windows: "windows",
    ir.Each: "each",
    ir.Choose: "choose",
}
