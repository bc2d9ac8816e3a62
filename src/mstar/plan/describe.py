"""A plan in words: what runs where, what crosses and how often, which states move, what can share a batch."""

from __future__ import annotations

from collections import Counter

from mstar.errors import counted
from mstar.graph import ir
from mstar.plan.tables import Crossing, Plan, Plans


def describe(plans: Plans, graphs: dict[str, ir.Walk]) -> str:
    """All walks of a model under one placement, for a person."""
    walks = [_walk(plan, plans, graphs[name]) for name, plan in plans.walks.items()]
    shared = ["calls that may share a batch, of one request or of many", *(f"  {line}" for line in sharing(plans))]
    return "\n\n".join([*walks, "\n".join(shared)]) + "\n"


def sharing(plans: Plans) -> list[str]:
    """Which calls may run as one, of one request or of many: a line for each batch key."""
    lines: list[str] = []
    for number, key in enumerate(plans.keys):
        counts = {name: [k for k, _ in plan.calls].count(number) for name, plan in plans.walks.items()}
        where = [name if count == 1 else f"{name} x{count}" for name, count in counts.items() if count]
        lines.append(f"{key} in {', '.join(where)}")
    return lines


def _walk(plan: Plan, plans: Plans, graph: ir.Walk) -> str:
    workers = sorted({worker for spot in plan.spots for worker in spot.workers})
    lines = [f"walk {plan.walk} on {', '.join(workers)}"]
    for seat in range(len(plan.spots)):
        calls = Counter(str(plans.keys[key]) for key, at in plan.calls if at == seat)
        ops = ", ".join(name if count == 1 else f"{name} x{count}" for name, count in calls.items())
        lines.append(f"  {_seat(plan, seat)} runs {ops or 'no op'}")
    lines += [f"  {_crossing(crossing)}" for crossing in plan.crossings]
    if not plan.crossings:
        lines.append("  nothing crosses")
    loops = sum(isinstance(node, ir.Loop) for node in ir.flat(graph.body))
    streams = sum(isinstance(node, ir.Open) for node in ir.flat(graph.body))
    parts = counted(len(plan.calls), "call"), counted(loops, "loop"), counted(streams, "stream")
    lines.append(f"  {', '.join(parts)}; {_tables(plan)}")
    return "\n".join(lines)


def _seat(plan: Plan, seat: int) -> str:
    spot = plan.spots[seat]
    one = spot.workers[0] if len(spot.workers) == 1 else "one of " + ", ".join(spot.workers)
    return f"[{seat}] {one}" + (f", lane {spot.lane}" if spot.lane else "")


def _crossing(crossing: Crossing) -> str:
    what = "moves" if crossing.is_state else "streams" if crossing.is_stream else "sends"
    sigil = "" if crossing.is_stream else "%"
    to = f"{crossing.type} to [{crossing.target}]"
    return f"[{crossing.source}] {what} {sigil}{crossing.name}: {to}, {often(crossing)}"


def often(crossing: Crossing) -> str:
    """How often something crosses."""
    return "once" if crossing.depth == 0 else "each iteration" if crossing.depth == 1 else "each inner iteration"


def _tables(plan: Plan) -> str:
    bodies = [body for part in plan.parts for body in part.bodies.values()]
    return f"{sum(len(body.instructions) for body in bodies)} instructions, {sum(body.slots for body in bodies)} slots"
