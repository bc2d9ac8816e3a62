"""FlatGraph: a captured network as data, a list of tensor operations and a recipe for each constant that they read.

A recipe names tensors and how they are merged and packed, so that a graph holds no weights. `bind` evaluates the
recipes and returns the function. `encode` and `decode` convert a graph to and from plain values for the graph cache.
Only calls of the functions and of torch operators in the namespaces that are listed here can be decoded, and only
identifiers as names, so that a cache file cannot call anything else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from mstar.nn import native
from mstar.nn.compile import int8
from mstar.nn.compile.elementwise import in_whole_vectors
from mstar.nn.kv.cross_attention import cross_attend
from mstar.nn.kv.paged_attention import attend_fused_qkv, attend_general, attend_running
from mstar.nn.lm.adapters.adapted_linear import adapt_linear
from mstar.nn.lm.adapters.low_rank import Linear

Recipe = tuple[Any, ...]
"""How a constant is made: ("tensor", name), ("concatenate", recipe, ...), ("transposed", recipe), ("tiles", recipe),
("onednn", recipe), or ("int8", 0 or 1, recipe) for the tiles and the scales."""
_PACKED_ROWS = 16
"""Expected number of rows of a oneDNN product; the packed layout hardly depends on it."""
_NAMESPACES = ("aten", "mkldnn")
"""Namespaces of torch operators that a decoded graph can call."""
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(native.rms_norm, native.add_norm, native.silu_mul, native.rotate, native.linear, native.linear_int8),
        *(attend_running, attend_general, attend_fused_qkv, cross_attend, adapt_linear, in_whole_vectors),
        *(operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv, operator.neg),
    )
}
"""Functions that a decoded graph can call, by name."""
_KINDS = ("placeholder", "get_attr", "call_function", "output")
_NAMES = {function: name for name, function in _FUNCTIONS.items()}


class NotEncodable(Exception):
    """A graph has an operation or a value that cannot be stored."""


@dataclass(frozen=True, slots=True)
class FlatGraph:
    """A captured network without its weights: (embeddings, positions, last) -> (logits, hidden states)."""

    graph: Graph
    """Its constants are the attributes `constant_0`, `constant_1` and so on."""
    constants: tuple[Recipe, ...]
    window: int | None
    """The largest sliding window, if every layer has one."""
    linears: tuple[Linear, ...] = ()
    """Products that adapters can change, by the number in their calls of `adapt_linear`."""

    def bind(self, tensor: Callable[[str], Tensor]) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The function for these weights; `tensor` returns a tensor by its name."""
        evaluate = Evaluator(tensor)
        constants = {f"constant_{number}": evaluate(recipe) for number, recipe in enumerate(self.constants)}
        module = GraphModule(dict.fromkeys(constants), self.graph)
        vars(module).update(constants)  # not registered as buffers: the lookup of registered attributes is slow
        return module.forward


class Evaluator:
    """Evaluates recipes of constants."""

    def __init__(self, tensor: Callable[[str], Tensor]) -> None:
        self._tensor = tensor
        self._quantized: tuple[Recipe, tuple[Tensor, Tensor]] | None = None
        """The last quantized matrix: its tiles and its scales are adjacent constants."""

    def __call__(self, recipe: Recipe) -> Tensor:
        """The tensor that a recipe describes."""
        match recipe:
            case ("tensor", name):
                return self._tensor(name)
            case ("concatenate", *parts):
                return torch.cat([self(part) for part in parts])
            case ("transposed", part):
                return self(part).T.contiguous()
            case ("tiles", part):
                return native.to_tiles(self(part))
            case ("onednn", part):
                return torch.ops.mkldnn._reorder_linear_weight(self(part), _PACKED_ROWS)
            case ("int8", which, part):
                if self._quantized is None or self._quantized[0] != part:
                    self._quantized = part, int8.pack(self(part))
                return self._quantized[1][which]
            case _:
                raise ValueError(f"unknown recipe {recipe!r}")

    def tensors(self, recipes: Iterable[Recipe]) -> Iterator[Tensor]:
        """The tensors that recipes read."""
        for recipe in recipes:
            if recipe[0] == "tensor":
                yield self._tensor(recipe[1])
            else:
                yield from self.tensors(part for part in recipe[1:] if isinstance(part, tuple))


# ---------------------------------------------------------------- plain values
def encode(graph: Graph) -> list[Any]:
    """The operations of a graph as lists, numbers and strings. Raises NotEncodable."""
    numbers = {node: number for number, node in enumerate(graph.nodes)}

    def plain(value: Any) -> Any:
        match value:
            case Node():
                return {"node": numbers[value]}
            case tuple():
                return {"tuple": [plain(item) for item in value]}
            case list():
                return [plain(item) for item in value]
            case slice():
                return {"slice": [plain(item) for item in (value.start, value.stop, value.step)]}
            case torch.dtype() | torch.layout() | torch.memory_format():
                return {"torch": str(value).removeprefix("torch.")}
            case torch.device():
                return {"device": str(value)}
            case None | bool() | int() | float() | str():
                return value
            case _:
                raise NotEncodable(f"a value of type {type(value).__name__}")

    return [
        [
            node.op,
            _target_name(node),
            plain(tuple(node.args)),
            {name: plain(item) for name, item in node.kwargs.items()},
        ]
        for node in graph.nodes
    ]


def decode(rows: list[Any]) -> Graph:
    """The graph of encoded operations. Raises ValueError, LookupError, AttributeError or TypeError if damaged."""
    graph, nodes = Graph(), list[Node]()

    def value(plain: Any) -> Any:
        match plain:
            case {"node": number}:
                return nodes[number]
            case {"tuple": items}:
                return tuple(value(item) for item in items)
            case {"slice": items}:
                return slice(*(value(item) for item in items))
            case {"torch": name}:
                return _torch_constant(name)
            case {"device": name}:
                return torch.device(name)
            case list():
                return [value(item) for item in plain]
            case _:
                return plain

    for kind, name, args, kwargs in rows:
        _require_plain(kind, name, kwargs)
        target = _function(name) if kind == "call_function" else name
        named = {key: value(item) for key, item in kwargs.items()}
        nodes.append(graph.create_node(kind, target, value(args), named, name if kind == "placeholder" else None))
    return graph


def _target_name(node: Node) -> str:
    target = node.target
    if node.op in ("placeholder", "get_attr", "output"):
        return str(target)
    if isinstance(target, torch._ops.OpOverload) and target.namespace in _NAMESPACES:
        return str(target)
    if not callable(target) or target not in _NAMES:
        raise NotEncodable(f"the operation {target}")
    return _NAMES[target]


def _require_plain(kind: str, name: str, kwargs: Iterable[str]) -> None:
    """Raise ValueError for what `encode` does not write: the code of a graph is made of these names."""
    names = [*kwargs] if kind == "call_function" else [name, *kwargs]
    if kind not in _KINDS or not all(map(str.isidentifier, names)):
        raise ValueError(f"unknown operation {kind} {name}")


def _torch_constant(name: str) -> Any:
    constant = getattr(torch, name)
    if not isinstance(constant, torch.dtype | torch.layout | torch.memory_format):
        raise ValueError(f"unknown constant {name}")
    return constant


def _function(name: str) -> Callable[..., Any]:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    namespace, operation, overload = name.split(".")
    if namespace not in _NAMESPACES:
        raise ValueError(f"unknown operation {name}")
    return getattr(getattr(getattr(torch.ops, namespace), operation), overload)
