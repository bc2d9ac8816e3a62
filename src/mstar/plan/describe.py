"""Text form of plans for `mstar plan`: ops per worker, transfers and their frequency, batch keys."""

from __future__ import annotations

from collections import Counter

from mstar.errors import format_count
from mstar.graph import ir
from mstar.plan.tables import CutEdge, Plan, Plans


def describe(plans: Plans, graphs: dict[str, ir.Walk]) -> str:
    """Describe all walks of a model under one placement."""
    walks = [_walk(plan, plans, graphs[name]) for name, plan in plans.walks.items()]
    shared = [
        "calls that can share a batch, of one request or of many",
        *(f"  {line}" for line in describe_batch_keys(plans)),
    ]
    return "\n\n".join([*walks, "\n".join(shared)]) + "\n"


def describe_batch_keys(plans: Plans) -> list[str]:
    """Describe each batch key in one line: its calls by walk."""
    lines: list[str] = []
    for number, key in enumerate(plans.keys):
        counts = {name: [k for k, _ in plan.calls].count(number) for name, plan in plans.walks.items()}
        walks = [name if count == 1 else f"{name} x{count}" for name, count in counts.items() if count]
        lines.append(f"{key} in {', '.join(walks)}")
    return lines


def _walk(plan: Plan, plans: Plans, graph: ir.Walk) -> str:
    workers = sorted({worker for worker_set in plan.worker_sets for worker in worker_set.workers})
    lines = [f"walk {plan.walk} on {', '.join(workers)}"]
    for seat in range(len(plan.worker_sets)):
        calls = Counter(str(plans.keys[key]) for key, at in plan.calls if at == seat)
        ops = ", ".join(name if count == 1 else f"{name} x{count}" for name, count in calls.items())
        lines.append(f"  {_seat(plan, seat)} runs {ops or 'no op'}")
    lines += [f"  {_describe_cut_edge(edge)}" for edge in plan.cut_edges]
    if not plan.cut_edges:
        lines.append("  nothing crosses")
    loops = sum(isinstance(node, ir.Loop) for node in ir.flat(graph.body))
    streams = sum(isinstance(node, ir.Open) for node in ir.flat(graph.body))
    parts = format_count(len(plan.calls), "call"), format_count(loops, "loop"), format_count(streams, "stream")
    lines.append(f"  {', '.join(parts)}; {_tables(plan)}")
    return "\n".join(lines)


def _seat(plan: Plan, seat: int) -> str:
    worker_set = plan.worker_sets[seat]
    workers = worker_set.workers
    name = workers[0] if len(workers) == 1 else "one of " + ", ".join(workers)
    return f"[{seat}] {name}" + (f", spread {worker_set.spread_index}" if worker_set.spread_index else "")


def _describe_cut_edge(edge: CutEdge) -> str:
    verb = "moves" if edge.is_state else "streams" if edge.is_stream else "sends"
    sigil = "" if edge.is_stream else "%"
    to = f"{edge.type} to [{edge.target}]"
    return f"[{edge.source}] {verb} {sigil}{edge.name}: {to}, {describe_frequency(edge)}"


def describe_frequency(edge: CutEdge) -> str:
    """Frequency of a transfer."""
    return "once" if edge.depth == 0 else "each iteration" if edge.depth == 1 else "each inner iteration"


def _tables(plan: Plan) -> str:
    bodies = [body for part in plan.programs for body in part.bodies.values()]
    return f"{sum(len(body.instructions) for body in bodies)} instructions, {sum(body.slots for body in bodies)} slots"
