"""GET /v1/models/{model}/graph: walks laid out as by `mstar draw`, with placement, cut edges and measured op costs.

Costs are means since the worker processes started.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.responses import Response

from mstar.draw import to_picture
from mstar.graph import ir
from mstar.graph.types import ObjectType, TensorType, Type
from mstar.plan.describe import describe, describe_batch_keys, describe_frequency
from mstar.plan.tables import CutEdge, Plan, Plans
from mstar.server.admin.health import query_all_stats, refresh_stats
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.state import ServerState
from mstar.walk.component import Component
from mstar.wire.stats import OpTotals

Json = dict[str, Any]

_DTYPES_BY_BYTES = {1: ("bool", "int8", "uint8"), 2: ("int16", "float16", "bfloat16"), 4: ("int32", "float32")}
_DTYPE_BYTES = {name: size for size, names in {**_DTYPES_BY_BYTES, 8: ("int64", "float64")}.items() for name in names}
_SCALAR_TYPES = frozenset({"int", "float", "bool"})
"""Object types of 8 bytes."""


async def graph(exchange: HttpExchange) -> Response:
    """GET /v1/models/{model}/graph: layout, placement and costs of a model."""
    state = exchange.state
    served = exchange.resolve_model(exchange.request.path_params["model"])
    await refresh_stats(state)
    plans, graphs = state.plans[served.base_name], served.model.graphs()
    op_totals = [totals for ops in state.op_stats.values() for totals in ops if totals.model == served.base_name]
    components = served.model.components()
    client_calls = calls_by_walk(state) - (state.warmup_calls or Counter())
    used = {walk for _, model, walk in client_calls if model == served.base_name}
    content = {
        "model": served.base_name,
        "walks": [_walk(plans, plan, graphs[name]) | {"is_used": name in used} for name, plan in plans.walks.items()],
        "workers": plans.workers,
        "processes": [_process(state, worker) for worker in plans.workers],
        "ops": [op | {"source": _source(components, op["op"])} for op in _ops(plans, op_totals)],
        "seats": [
            {"walk": name, "seat": seat, "workers": worker_set.workers, "ops": _ops_at(plans, plan, seat)}
            for name, plan in plans.walks.items()
            for seat, worker_set in enumerate(plan.worker_sets)
        ],
        "cut_edges": [_cut_edge(plan, edge) for plan in plans.walks.values() for edge in plan.cut_edges],
        "batches": describe_batch_keys(plans),
        "text": describe(plans, graphs),
    }
    return json_response(content)


async def record_warmup(state: ServerState) -> None:
    """Remember the calls of the warm-up requests, so that a walk which no client has used is known."""
    await query_all_stats(state)
    state.warmup_calls = calls_by_walk(state)


def calls_by_walk(state: ServerState) -> Counter[tuple[str, str, str]]:
    """Number of op calls by worker, model and walk, since the worker processes started."""
    calls = Counter[tuple[str, str, str]]()
    for worker, ops in state.op_stats.items():
        for op in ops:
            for walk, totals in op.walks.items():
                calls[worker, op.model, walk] += totals.calls
    return calls


def _process(state: ServerState, worker: str) -> Json:
    """Components of all models on a worker, and its memory and CPU time; None if it shares the server's process."""
    components = {
        f"{model}.{plans.keys[key].component}": None
        for model, plans in state.plans.items()
        for plan in plans.walks.values()
        for key, seat in plan.calls
        if worker in plan.worker_sets[seat].workers
    }
    counts = state.metrics.processes.counts(worker)
    cpu_us = counts.get("cpu_us")
    return {
        "worker": worker,
        "components": [*components],
        "memory_bytes": counts.get("rss_bytes"),
        "cpu_s": None if cpu_us is None else cpu_us / 1e6,
        "threads": counts.get("threads"),
    }


def _source(components: Mapping[str, Component], name: str) -> str:
    """File name and line of an op. The path is left out, as in traces."""
    component, _, op = name.rpartition(".")
    code = components[component].ops()[op].body.__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def _walk(plans: Plans, plan: Plan, graph: ir.Walk) -> Json:
    placement = {_op_name(plans, key): plan.worker_sets[seat].workers for key, seat in plan.calls}
    drawn = to_picture(graph, placement)
    ops = sorted(int(box.id.removeprefix("op")) for box in drawn.boxes if box.shape == "op")
    return {"name": plan.walk, "picture": asdict(drawn), "calls": [f"op{number}" for number in ops]}


def _op_name(plans: Plans, key: int) -> str:
    return f"{plans.keys[key].component}.{plans.keys[key].op}"


def _ops_at(plans: Plans, plan: Plan, seat: int) -> list[str]:
    return list(dict.fromkeys(_op_name(plans, key) for key, at in plan.calls if at == seat))


def _ops(plans: Plans, op_totals: Iterable[OpTotals]) -> list[Json]:
    """Each op with its workers and its mean cost per call."""
    calls = [
        (_op_name(plans, key), plan.worker_sets[seat]) for plan in plans.walks.values() for key, seat in plan.calls
    ]
    workers = defaultdict[str, dict[str, None]](dict)
    for name, worker_set in calls:
        workers[name] |= dict.fromkeys(worker_set.workers)
    totals_by_op = defaultdict[str, list[OpTotals]](list)
    for totals in op_totals:
        totals_by_op[f"{totals.component}.{totals.op}"].append(totals)
    return [{"op": name, "workers": list(names)} | _mean_cost(totals_by_op[name]) for name, names in workers.items()]


def _mean_cost(stats: Iterable[OpTotals]) -> Json:
    walks = [walk for totals in stats for walk in totals.walks.values()]
    calls, batches = sum(walk.calls for walk in walks), sum(totals.batches for totals in stats)
    if not calls or not batches:
        return {"calls": 0, "seconds": None, "batch": None, "waited": None}
    seconds, waited = sum(walk.busy_s for walk in walks), sum(walk.wait_s for walk in walks)
    batch = sum(totals.batched_calls for totals in stats) / batches
    return {"calls": calls, "seconds": seconds / calls, "batch": batch, "waited": waited / calls}


def _cut_edge(plan: Plan, edge: CutEdge) -> Json:
    return {
        "walk": plan.walk,
        "name": edge.name,
        "type": str(edge.type),
        "kind": "state" if edge.is_state else "stream" if edge.is_stream else "value",
        "from": plan.worker_sets[edge.source].workers,
        "to": plan.worker_sets[edge.target].workers,
        "frequency": describe_frequency(edge),
        "bytes": _value_bytes(edge.type),
    }


def _value_bytes(type_: Type) -> int | None:
    """Size of a value, if its type determines it."""
    if isinstance(type_, ObjectType) and type_.name in _SCALAR_TYPES:
        return 8
    if not isinstance(type_, TensorType) or type_.dtype not in _DTYPE_BYTES:
        return None
    sizes = [dim for dim in type_.dims if isinstance(dim, int)]
    return _DTYPE_BYTES[type_.dtype] * math.prod(sizes) if len(sizes) == len(type_.dims) else None
