"""Fusing: sequences of recorded operations that one kernel of `mstar.nn.native` does in one pass over memory.

A pattern is written as the operations are nested. What matches none stays as it was recorded: a pattern may be missing,
never wrong.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from mstar.nn import native
from mstar.nn.kv.paged_attention import attend_fused_qkv, attend_running

aten = torch.ops.aten


def fuse(graph: Graph) -> None:
    """Replace what matches a pattern by one call."""
    for pattern, call in _PATTERNS:
        for node in list(graph.nodes):
            found: dict[str, Any] = {"": node}
            if node.op == "call_function" and _matches(pattern, node, found) and (made := call(found)):
                with graph.inserting_before(node):
                    fused = graph.call_function(made[0], made[1:])
                fused.meta = dict(node.meta)
                node.replace_all_uses_with(fused)
    graph.eliminate_dead_code()
    _deduplicate(graph)
    for node in list(graph.nodes):
        if node.target is native.rms_norm:
            _add_before_norm(graph, node)


def value_of(node: Node) -> Tensor:
    """The shape and type a node's result has, as it was recorded."""
    return node.meta["val"]


# ---------------------------------------------------------------- matching
class _Wildcard:
    """A place in a pattern that takes whatever stands there, the same at each mention."""

    def __init__(self, name: str) -> None:
        self.name = name


_COMMUTATIVE = {aten.mul.Tensor, aten.add.Tensor}
_TO = aten.to.dtype


def _matches(pattern: Any, node: Any, found: dict[str, Any]) -> bool:
    """Whether a node was computed as a pattern says; `found` receives what stands at its places."""
    if isinstance(pattern, _Wildcard):
        return found.setdefault(pattern.name, node) is node or found[pattern.name] == node
    if isinstance(pattern, list):
        lists = isinstance(node, list | tuple) and len(node) == len(pattern)
        return lists and all(_matches(one, given, found) for one, given in zip(pattern, node, strict=True))
    if not isinstance(pattern, tuple):
        return type(pattern) is type(node) and pattern == node
    target, *wanted = pattern
    if target is _TO:  # a change of type, or none where the type was right already
        inner = node.args[0] if isinstance(node, Node) and node.target is _TO else node
        return _matches(wanted[0], inner, found)
    if not isinstance(node, Node) or node.target is not target or len(node.args) < len(wanted):
        return False
    for order in [wanted, wanted[::-1]] if target in _COMMUTATIVE else [wanted]:
        tried = dict(found)
        if all(_matches(one, given, tried) for one, given in zip(order, node.args, strict=False)):
            found.update(tried)
            return True
    return False


def _same_type(*nodes: Node) -> bool:
    return len({value_of(node).dtype for node in nodes}) == 1


# ---------------------------------------------------------------- norms, rotations, gates
_X, _W, _E, _COS, _SIN, _HALF = (_Wildcard(name) for name in ("x", "weight", "epsilon", "cos", "sin", "half"))
_WIDE = (_TO, _X)
_RMS = (aten.rsqrt.default, (aten.add.Tensor, (aten.mean.dim, (aten.pow.Tensor_Scalar, _WIDE, 2), [-1], True), _E))
_RMS_NORM = (aten.mul.Tensor, _W, (_TO, (aten.mul.Tensor, _WIDE, _RMS)))
_HIGH, _LOW = (aten.slice.Tensor, _X, 3, _HALF), (aten.slice.Tensor, _X, 3, 0, _HALF)
_TURNED = (aten.cat.default, [(aten.neg.default, _HIGH), _LOW], -1)
_ROTATE = (aten.add.Tensor, (aten.mul.Tensor, _X, _COS), (aten.mul.Tensor, _TURNED, _SIN))
_GATE, _UP = (aten.slice.Tensor, _X, 2, 0, _HALF), (aten.slice.Tensor, _X, 2, _HALF)
_SILU_MUL = (aten.mul.Tensor, (aten.silu.default, _GATE), _UP)


def _norm_call(found: dict[str, Any]) -> tuple[Any, ...] | None:
    x, weight, epsilon = found["x"], found["weight"], found["epsilon"]
    fits = isinstance(epsilon, float) and tuple(value_of(weight).shape) == (value_of(x).shape[-1],)
    return (native.rms_norm, x, weight, epsilon) if fits and _same_type(x, weight) else None


def _rotate_call(found: dict[str, Any]) -> tuple[Any, ...] | None:
    x, cos, sin = found["x"], found["cos"], found["sin"]
    fits = value_of(x).ndim == 4 and value_of(x).shape[3] == 2 * found["half"] == value_of(cos).shape[-1]
    return (native.rotate, x, cos, sin) if fits and _same_type(x, cos, sin) else None


def _gate_call(found: dict[str, Any]) -> tuple[Any, ...] | None:
    return (native.silu_mul, found["x"]) if value_of(found["x"]).shape[2] == 2 * found["half"] else None


# ---------------------------------------------------------------- attention
def _heads(first: Any, last: Any) -> Any:
    cut = (aten.slice.Tensor, _X, 2, first, last)
    return (aten.transpose.int, (aten.view.default, cut), 1, 2)


_A, _B, _C, _LAYER, _SCALE, _WINDOW = (_Wildcard(name) for name in ("a", "b", "c", "layer", "scale", "window"))
_QUERY, _KEY = ((native.rotate, _heads(*ends), _COS, _SIN) for ends in ((0, _A), (_A, _B)))
_ATTEND = (attend_running, _QUERY, _KEY, _heads(_B, _C), _LAYER, _SCALE, _WINDOW)
_JOINED = (aten.reshape.default, _ATTEND)


def _joined_call(found: dict[str, Any]) -> tuple[Any, ...] | None:
    """Queries, keys and values that were one product are rotated, written and attended to in one call."""
    x, cos, sin = found["x"], found["cos"], found["sin"]
    size, width = value_of(cos).shape[-1], found["b"] - found["a"]
    fits = value_of(found[""]).ndim == 3 and value_of(found[""]).shape[-1] == found["a"]
    fits &= value_of(x).shape[-1] == found["c"] == found["b"] + width and not (width % size or found["a"] % width)
    rule = found["layer"], found["scale"], found["window"], width // size, size
    return (attend_fused_qkv, x, cos, sin, *rule) if fits else None


_PATTERNS: tuple[tuple[Any, Any], ...] = (
    (_RMS_NORM, _norm_call),
    (_ROTATE, _rotate_call),
    (_SILU_MUL, _gate_call),
    (_JOINED, _joined_call),
)


# ---------------------------------------------------------------- sums, and what is done twice
def _deduplicate(graph: Graph) -> None:
    """Layers look at the same angles, each for itself: once is enough."""
    seen: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.target is aten.unsqueeze.default:
            first = seen.setdefault(node.args, node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)


def _add_before_norm(graph: Graph, norm: Node) -> None:
    """A sum that is normed next is made in the same pass. Others may read the sum, if they come later."""
    total, weight, epsilon = norm.args
    if not isinstance(total, Node) or total.target is not aten.add.Tensor or total.kwargs:
        return
    x, more = total.args
    if not isinstance(x, Node) or not isinstance(more, Node) or any(user < norm for user in total.users):
        return
    if value_of(x).shape != value_of(more).shape or not _same_type(x, more, total):
        return
    with graph.inserting_before(norm):
        pair = graph.call_function(native.add_norm, (x, more, weight, epsilon))
        parts = [graph.call_function(operator.getitem, (pair, which)) for which in (0, 1)]
    for part, old in zip(parts, (total, norm), strict=True):
        part.meta = dict(old.meta)
        old.replace_all_uses_with(part, delete_user_cb=lambda user: user is not pair)
    graph.erase_node(norm)
