"""A model's graph for a browser: each walk laid out as `mstar draw` does, where ops run, what crosses, what it costs.

Costs are those that were measured since the processes began.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from mstar.draw import picture
from mstar.graph import ir
from mstar.graph.types import ObjectType, TensorType, Type
from mstar.plan.describe import describe, often, sharing
from mstar.plan.tables import Crossing, Plan, Plans
from mstar.server.operations import refresh
from mstar.server.visit import Visit, answered
from mstar.wire.figures import OpCount

Told = dict[str, Any]

_SIZES = {1: ("bool", "int8", "uint8"), 2: ("int16", "float16", "bfloat16"), 4: ("int32", "float32")}
_BYTES = {name: size for size, names in {**_SIZES, 8: ("int64", "float64")}.items() for name in names}
_PLAIN = frozenset({"int", "float", "bool"})
"""Objects that are a few bytes."""


async def graph(visit: Visit) -> Response:
    """GET /v1/models/{model}/graph."""
    door = visit.door
    served = visit.find(visit.request.path_params["model"])
    await refresh(door)
    plans, graphs = door.plans[served.name], served.model.graphs()
    counts = [(worker, one) for worker, ops in door.ops.items() for one in ops if one.model == served.name]
    told = {
        "model": served.name,
        "walks": [_walk(plans, plan, graphs[name]) for name, plan in plans.walks.items()],
        "workers": plans.workers,
        "ops": _ops(plans, counts),
        "seats": [
            {"walk": name, "seat": seat, "workers": spot.workers, "ops": _ops_at(plans, plan, seat)}
            for name, plan in plans.walks.items()
            for seat, spot in enumerate(plan.spots)
        ],
        "crossings": [_crossing(plan, one) for plan in plans.walks.values() for one in plan.crossings],
        "batches": sharing(plans),
        "text": describe(plans, graphs),
    }
    return answered(told)


def _walk(plans: Plans, plan: Plan, graph: ir.Walk) -> Told:
    placement = {_name(plans, key): plan.spots[seat].workers for key, seat in plan.calls}
    drawn = picture(graph, placement)
    ops = sorted(int(box.id.removeprefix("op")) for box in drawn.boxes if box.shape == "op")
    return {"name": plan.walk, "picture": asdict(drawn), "calls": [f"op{number}" for number in ops]}


def _name(plans: Plans, key: int) -> str:
    return f"{plans.keys[key].component}.{plans.keys[key].op}"


def _ops_at(plans: Plans, plan: Plan, seat: int) -> list[str]:
    return list(dict.fromkeys(_name(plans, key) for key, at in plan.calls if at == seat))


def _ops(plans: Plans, counts: Iterable[tuple[str, OpCount]]) -> list[Told]:
    """Each op: who runs it, and what one call of it came to."""
    calls = [(_name(plans, key), plan.spots[seat]) for plan in plans.walks.values() for key, seat in plan.calls]
    workers = defaultdict[str, dict[str, None]](dict)
    for name, spot in calls:
        workers[name] |= dict.fromkeys(spot.workers)
    ran = defaultdict[str, list[OpCount]](list)
    for _, one in counts:
        ran[f"{one.component}.{one.op}"].append(one)
    return [{"op": name, "workers": list(there)} | _cost(ran[name]) for name, there in workers.items()]


def _cost(ran: Iterable[OpCount]) -> Told:
    walks = [walk for one in ran for walk in one.walks.values()]
    calls, batches = sum(walk.calls for walk in walks), sum(one.batches for one in ran)
    if not calls or not batches:
        return {"calls": 0, "seconds": None, "batch": None, "waited": None}
    seconds, waited = sum(walk.seconds for walk in walks), sum(walk.waited for walk in walks)
    batch = sum(one.members for one in ran) / batches
    return {"calls": calls, "seconds": seconds / calls, "batch": batch, "waited": waited / calls}


def _crossing(plan: Plan, one: Crossing) -> Told:
    return {
        "walk": plan.walk,
        "name": one.name,
        "type": str(one.type),
        "kind": "state" if one.is_state else "stream" if one.is_stream else "value",
        "from": plan.spots[one.source].workers,
        "to": plan.spots[one.target].workers,
        "often": often(one),
        "bytes": _bytes(one.type),
    }


def _bytes(type_: Type) -> int | None:
    """How large such a value is, where its type says so."""
    if isinstance(type_, ObjectType) and type_.name in _PLAIN:
        return 8
    if not isinstance(type_, TensorType) or type_.dtype not in _BYTES:
        return None
    sizes = [dim for dim in type_.dims if isinstance(dim, int)]
    return _BYTES[type_.dtype] * math.prod(sizes) if len(sizes) == len(type_.dims) else None
