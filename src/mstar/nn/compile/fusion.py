"""Operator fusion: replaces patterns of a captured graph by one kernel of `mstar.nn.native` (one pass over memory).

A pattern is a nested tuple of operations. Operations that match no pattern stay as captured, so a missing pattern costs
speed but not correctness.
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
    """Replace all matches of the patterns by calls of fused kernels."""
    for pattern, call in _PATTERNS:
        for node in list(graph.nodes):
            bindings: dict[str, Any] = {"": node}
            if node.op == "call_function" and _matches(pattern, node, bindings) and (fused_call := call(bindings)):
                with graph.inserting_before(node):
                    fused = graph.call_function(fused_call[0], fused_call[1:])
                fused.meta = dict(node.meta)
                node.replace_all_uses_with(fused)
    graph.eliminate_dead_code()
    _deduplicate(graph)
    for node in list(graph.nodes):
        if node.target is native.rms_norm:
            _add_before_norm(graph, node)


def value_of(node: Node) -> Tensor:
    """Captured shape and dtype of a node's result, as a fake tensor."""
    return node.meta["val"]


# ---------------------------------------------------------------- matching
class _Wildcard:
    """Pattern variable: matches any argument, and the same one at each occurrence."""

    def __init__(self, name: str) -> None:
        self.name = name


_COMMUTATIVE = {aten.mul.Tensor, aten.add.Tensor}
_TO = aten.to.dtype


def _matches(pattern: Any, node: Any, bindings: dict[str, Any]) -> bool:
    """Whether a node matches a pattern; `bindings` receives the values of the pattern variables."""
    if isinstance(pattern, _Wildcard):
        return bindings.setdefault(pattern.name, node) is node or bindings[pattern.name] == node
    if isinstance(pattern, list):
        lists = isinstance(node, list | tuple) and len(node) == len(pattern)
        return lists and all(_matches(part, arg, bindings) for part, arg in zip(pattern, node, strict=True))
    if not isinstance(pattern, tuple):
        return type(pattern) is type(node) and pattern == node
    target, *parts = pattern
    if target is _TO:  # a dtype conversion, absent if the dtype already matches
        inner = node.args[0] if isinstance(node, Node) and node.target is _TO else node
        return _matches(parts[0], inner, bindings)
    if not isinstance(node, Node) or node.target is not target or len(node.args) < len(parts):
        return False
    for order in [parts, parts[::-1]] if target in _COMMUTATIVE else [parts]:
        tried = dict(bindings)
        if all(_matches(part, arg, tried) for part, arg in zip(order, node.args, strict=False)):
            bindings.update(tried)
            return True
    return False


def _same_type(*nodes: Node) -> bool:
    return len({value_of(node).dtype for node in nodes}) == 1


# ---------------------------------------------------------------- RMS norm, rotary embedding, SwiGLU
_X, _W, _E, _COS, _SIN, _HALF = (_Wildcard(name) for name in ("x", "weight", "epsilon", "cos", "sin", "half"))
_WIDE = (_TO, _X)
_RMS = (aten.rsqrt.default, (aten.add.Tensor, (aten.mean.dim, (aten.pow.Tensor_Scalar, _WIDE, 2), [-1], True), _E))
_RMS_NORM = (aten.mul.Tensor, _W, (_TO, (aten.mul.Tensor, _WIDE, _RMS)))
_HIGH, _LOW = (aten.slice.Tensor, _X, 3, _HALF), (aten.slice.Tensor, _X, 3, 0, _HALF)
_TURNED = (aten.cat.default, [(aten.neg.default, _HIGH), _LOW], -1)
_ROTATE = (aten.add.Tensor, (aten.mul.Tensor, _X, _COS), (aten.mul.Tensor, _TURNED, _SIN))
_GATE, _UP = (aten.slice.Tensor, _X, 2, 0, _HALF), (aten.slice.Tensor, _X, 2, _HALF)
_SILU_MUL = (aten.mul.Tensor, (aten.silu.default, _GATE), _UP)


def _norm_call(bindings: dict[str, Any]) -> tuple[Any, ...] | None:
    x, weight, epsilon = bindings["x"], bindings["weight"], bindings["epsilon"]
    fits = isinstance(epsilon, float) and tuple(value_of(weight).shape) == (value_of(x).shape[-1],)
    return (native.rms_norm, x, weight, epsilon) if fits and _same_type(x, weight) else None


def _rotate_call(bindings: dict[str, Any]) -> tuple[Any, ...] | None:
    x, cos, sin = bindings["x"], bindings["cos"], bindings["sin"]
    fits = value_of(x).ndim == 4 and value_of(x).shape[3] == 2 * bindings["half"] == value_of(cos).shape[-1]
    return (native.rotate, x, cos, sin) if fits and _same_type(x, cos, sin) else None


def _gate_call(bindings: dict[str, Any]) -> tuple[Any, ...] | None:
    return (native.silu_mul, bindings["x"]) if value_of(bindings["x"]).shape[2] == 2 * bindings["half"] else None


# ---------------------------------------------------------------- attention
def _heads(first: Any, last: Any) -> Any:
    cut = (aten.slice.Tensor, _X, 2, first, last)
    return (aten.transpose.int, (aten.view.default, cut), 1, 2)


_A, _B, _C, _LAYER, _SCALE, _WINDOW = (_Wildcard(name) for name in ("a", "b", "c", "layer", "scale", "window"))
_QUERY, _KEY = ((native.rotate, _heads(*ends), _COS, _SIN) for ends in ((0, _A), (_A, _B)))
_ATTEND = (attend_running, _QUERY, _KEY, _heads(_B, _C), _LAYER, _SCALE, _WINDOW)
_JOINED = (aten.reshape.default, _ATTEND)


def _joined_call(bindings: dict[str, Any]) -> tuple[Any, ...] | None:
    """Rotary embedding, KV cache write and paged attention of a fused QKV projection in one call."""
    x, cos, sin = bindings["x"], bindings["cos"], bindings["sin"]
    size, width = value_of(cos).shape[-1], bindings["b"] - bindings["a"]
    fits = value_of(bindings[""]).ndim == 3 and value_of(bindings[""]).shape[-1] == bindings["a"]
    fits &= value_of(x).shape[-1] == bindings["c"] == bindings["b"] + width and not (
        width % size or bindings["a"] % width
    )
    rule = bindings["layer"], bindings["scale"], bindings["window"], width // size, size
    return (attend_fused_qkv, x, cos, sin, *rule) if fits else None


_PATTERNS: tuple[tuple[Any, Any], ...] = (
    (_RMS_NORM, _norm_call),
    (_ROTATE, _rotate_call),
    (_SILU_MUL, _gate_call),
    (_JOINED, _joined_call),
)


# ---------------------------------------------------------------- common subexpressions, residual add
def _deduplicate(graph: Graph) -> None:
    """Common subexpression elimination of the rotary angles, which every layer unsqueezes."""
    seen: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.target is aten.unsqueeze.default:
            first = seen.setdefault(node.args, node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)


def _add_before_norm(graph: Graph, norm: Node) -> None:
    """Fuse a residual add with the RMS norm after it, if all other users of the sum come later."""
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
