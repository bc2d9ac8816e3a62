"""Equal layers are captured once: graph capture of a deep network takes the time of a shallow one.

1. While a network is exported, each layer of a stack is compared with the layers before it: classes, shapes, attributes
   and arguments. The first two layers of a kind are captured between two marker ops.
2. Every further layer of that kind becomes one op, `layer_repeat`.
3. `expand_repeated` replaces that op by a copy of the captured operations, with the layer's own weights and number.

The two captured layers of a kind must be equal up to their weights and numbers. If they are not, or if other parts of
the network read values from inside a layer, `expand_repeated` raises `LayersDiffer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.nn import Module, ModuleList

_MIN_LAYERS = 4
"""Minimum number of layers of a stack. Shorter ones are captured completely."""
_NUMBER = "layer_idx"
"""Attribute with the number of a layer, the only one in which equal layers can differ."""
_LAYER_ARGUMENT = "layer"
"""Argument of custom ops that is the number of a layer."""
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
"""Hooks of a layer. They run outside its forward, and so for repeated layers too."""


class LayersDiffer(Exception):
    """Layers that look equal are captured differently."""


def _mark(hidden: Tensor, stack: str, index: int, number: int) -> Tensor:  # noqa: ARG001 - read from the graph
    return hidden.clone()


def _repeat(hidden: Tensor, stack: str, index: int, number: int, captured: list[int]) -> Tensor:  # noqa: ARG001
    return hidden.clone()


for _name, _function in (("begin", _mark), ("end", _mark), ("repeat", _repeat)):
    _op = torch.library.custom_op(f"mstar::layer_{_name}", _function, mutates_args=())
    _op.register_fake(lambda hidden, *_: torch.empty_like(hidden))

_BEGIN, _END = torch.ops.mstar.layer_begin.default, torch.ops.mstar.layer_end.default
_REPEAT = torch.ops.mstar.layer_repeat.default


# ---------------------------------------------------------------- during export
@contextmanager
def recording_equal_layers_once(network: Module) -> Iterator[None]:
    """Let an export of the network within this context capture two layers of each kind."""
    stacks = {
        name: stack
        for name, stack in network.named_modules()
        if isinstance(stack, ModuleList) and len(stack) >= _MIN_LAYERS and _are_numbered(stack)
    }
    try:
        for name, stack in stacks.items():
            captured: dict[Any, list[_Recorder]] = {}
            for index, layer in enumerate(stack):
                layer.forward = _Recorder(name, index, layer, captured)
        yield
    finally:
        for stack in stacks.values():
            for layer in stack:
                del layer.forward


def _are_numbered(stack: ModuleList) -> bool:
    numbers = [_layer_number(layer) for layer in stack]
    return None not in numbers and len({*numbers}) == len(numbers) and not any("forward" in vars(x) for x in stack)


def _layer_number(layer: Module) -> int | None:
    numbers = {vars(module)[_NUMBER] for module in layer.modules() if _NUMBER in vars(module)}
    return numbers.pop() if len(numbers) == 1 else None


class _Recorder:
    """Forward of a layer during export: the layer itself between markers, or one op if it repeats earlier ones."""

    def __init__(self, stack: str, index: int, layer: Module, captured: dict[Any, list[_Recorder]]) -> None:
        self._signature, self._captured, self.index = _signature(layer), captured, index
        self._place = stack, index, _layer_number(layer)
        self._forward: Callable[..., Any] = layer.forward
        self._arguments: Any = None
        """Arguments of a captured layer. They are kept, because `_identity` compares objects by address."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not args or not isinstance(args[0], Tensor):
            return self._forward(*args, **kwargs)
        hidden, *others = args
        same = self._captured.setdefault((self._signature, _identity(others), _identity(kwargs)), [])
        if len(same) > 1:
            return _REPEAT(hidden, *self._place, [recorder.index for recorder in same])
        result = self._forward(_BEGIN(hidden, *self._place), *others, **kwargs)
        if not isinstance(result, Tensor) or result.shape != hidden.shape or result.dtype != hidden.dtype:
            return result  # captured completely, like every other layer that returns this
        self._arguments = others, kwargs
        same.append(self)
        return _END(result, *self._place)


def _signature(layer: Module) -> Any:
    """Everything that determines what a layer computes, except its weights and its number."""
    parts: list[Any] = []
    for name, module in layer.named_modules():
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        shapes = tuple((key, tuple(tensor.shape), tensor.dtype, tensor.device) for key, tensor in tensors)
        left_out = (*_MODULE_TABLES, _NUMBER, *([] if name else _HOOKS))
        attributes = tuple((key, _identity(value)) for key, value in vars(module).items() if key not in left_out)
        parts.append((name, type(module), shapes, attributes))
    return tuple(parts)


def _identity(value: Any) -> Any:
    """A hashable value that is equal for equal plain values, and otherwise only for the same object."""
    if isinstance(value, dict):
        return "dict", tuple((key, _identity(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(_identity(item) for item in value)
    if isinstance(value, set | frozenset):
        return "set", frozenset(_identity(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device):
        return type(value).__name__, value
    return "object", id(value)


# ---------------------------------------------------------------- after export
class _Body:
    """The captured operations of one layer."""

    def __init__(self, begin: Node, nodes: list[Node], end: Node) -> None:
        self.begin, self.end = begin, end
        _, self.stack, self.index, self.number = begin.args
        inside, dependent = {begin, *nodes}, {begin}
        for node in nodes:
            if any(source in dependent or self.weight_name(source) is not None for source in node.all_input_nodes):
                dependent.add(node)
        for node in reversed(nodes):  # values that the first layer computes for all of them are not part of it
            if node not in dependent and any(user not in inside for user in node.users):
                inside.discard(node)
        self.nodes = [node for node in nodes if node in inside]
        if any(user not in inside and user is not end for node in inside for user in node.users):
            raise LayersDiffer(f"values inside {self.stack}.{self.index} are read outside")

    def weight_name(self, node: Any) -> str | None:
        """Name of a weight within this layer; None for any other node."""
        prefix = f"{self.stack}.{self.index}."
        is_weight = isinstance(node, Node) and node.op == "get_attr" and str(node.target).startswith(prefix)
        return str(node.target).removeprefix(prefix) if is_weight else None


def expand_repeated(graph: Graph) -> None:
    """Replace repeated layers by the operations of the captured ones. Raises LayersDiffer."""
    repeats = [node for node in graph.nodes if node.target is _REPEAT]
    bodies = _bodies(graph) if repeats else {}
    for stack, first, second in {(node.args[1], *node.args[4]) for node in repeats}:
        _require_equal(bodies[stack, first], bodies[stack, second])
    for node in repeats:
        with graph.inserting_before(node):
            node.replace_all_uses_with(_copy(graph, node, bodies[node.args[1], node.args[4][0]]))
        graph.erase_node(node)
    for node in list(graph.nodes):
        if node.target in (_BEGIN, _END):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _bodies(graph: Graph) -> dict[tuple[str, int], _Body]:
    """The captured layers, by stack and index."""
    nodes, positions = list(graph.nodes), dict[Any, int]()
    bodies: dict[tuple[str, int], _Body] = {}
    for position, node in enumerate(nodes):
        if node.target is _BEGIN:
            positions[node.args[1:]] = position
        elif node.target is _END:
            begin = positions[node.args[1:]]
            bodies[node.args[1:3]] = _Body(nodes[begin], nodes[begin + 1 : position], node)
    return bodies


def _copy(graph: Graph, repeat: Node, body: _Body) -> Node:
    """Insert the operations of a body for a repeated layer; return their result."""
    hidden, stack, index, number, _ = repeat.args
    copies: dict[Node, Any] = {body.begin: hidden}

    def replaced(node: Any) -> Any:
        if node not in copies and (name := body.weight_name(node)) is not None:
            copies[node] = graph.create_node("get_attr", f"{stack}.{index}.{name}")
            copies[node].meta = dict(node.meta)
        return copies.get(node, node)

    for node in body.nodes:
        weights = [source for source in node.all_input_nodes if source.op == "get_attr"]
        for weight in weights:
            replaced(weight)  # before the copy that reads it
        copies[node] = graph.node_copy(node, replaced)
        if (position := _number_position(node)) is not None and node.args[position] == body.number:
            copies[node].update_arg(position, number)
    return replaced(body.end.args[0])


def _number_position(node: Node) -> int | None:
    """Position of the layer number in the arguments of a custom op."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace != "mstar":
        return None
    names = [argument.name for argument in node.target._schema.arguments]
    return names.index(_LAYER_ARGUMENT) if _LAYER_ARGUMENT in names else None


def _require_equal(one: _Body, other: _Body) -> None:
    """Raise LayersDiffer unless two captured layers are equal up to their weights and numbers."""
    pairs = {one.begin: other.begin} | dict(zip(one.nodes, other.nodes, strict=False))

    def renamed(node: Any) -> Any:
        name = one.weight_name(node)
        return pairs.get(node, node) if name is None else ("weight", name)

    def own(node: Any) -> Any:
        name = other.weight_name(node)
        return node if name is None else ("weight", name)

    def calls(body: _Body, rename: Callable[[Any], Any]) -> Iterator[Any]:
        for node in body.nodes:
            args: list[Any] = list(cast("Any", torch.fx.map_arg((node.args, node.kwargs), rename)))
            if (position := _number_position(node)) is not None and node.args[position] == body.number:
                args[0] = (*args[0][:position], "number", *args[0][position + 1 :])
            yield node.target, repr(args)
        yield "result", repr(rename(body.end.args[0]))

    if [*calls(one, renamed)] != [*calls(other, own)]:
        raise LayersDiffer(f"{one.stack}.{one.index} and {one.stack}.{other.index} are captured differently")
