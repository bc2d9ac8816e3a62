"""Which walks can run early: those whose effects can be dropped. See `mstar.lookahead`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mstar.errors import format_site
from mstar.graph import ir
from mstar.walk.tracer import trace

if TYPE_CHECKING:
    from mstar.walk.component import Component

_CACHE = "_lookahead_problems"
"""Attribute of a model: by walk, why the walk cannot run early; empty if it can."""


def find_problem(model: Any, name: str, function: Callable[..., Any]) -> str:
    """Why a walk of a model cannot run early, with the fix; empty if it can. It is traced once."""
    known: dict[str, str] | None = getattr(model, _CACHE, None)
    if known is None:
        known = {}
        setattr(model, _CACHE, known)
    if name not in known:
        known[name] = _find_problem(model.components(), name, trace(function, model)[0])
    return known[name]


def _find_problem(components: dict[str, Component], name: str, graph: ir.Walk) -> str:
    for node in ir.flat(graph.body):
        if isinstance(node, ir.Emit):
            return (
                f"lookahead walk `{name}` emits {node.kind} at {format_site(node.site)}, which cannot be taken back\n"
                f"  fix: return the value, and emit it in a walk that the route awaits"
            )
        if isinstance(node, ir.Call) and not components[node.component].ops()[node.op].idempotent:
            return (
                f"lookahead walk `{name}` calls {node.component}.{node.op} at {format_site(node.site)}, "
                f"which has idempotent=False and cannot be taken back\n"
                f"  fix: call it in a walk that the route awaits"
            )
    return ""
