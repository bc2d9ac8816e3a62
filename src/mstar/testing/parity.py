"""parity: is what is served what the model computes eagerly?

The eager run is the oracle. It is compared with LocalRuntime under many schedules, placements, batchings and stream
bounds, all repeatable from one seed.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mstar.errors import ParityError
from mstar.graph import ir
from mstar.plan.placement import Placement, PlacementRule
from mstar.testing.local_runtime import LocalRuntime
from mstar.walk.client_input import ClientInput
from mstar.walk.emissions import Emission
from mstar.walk.model import Model, Outcome
from mstar.walk.values import is_array


def parity(
    model: Model, request: Any, *, inputs: Sequence[ClientInput] = (), schedules: int = 5, seed: int = 0
) -> None:
    """Serve a request under random schedules and placements; raise ParityError unless each gives the eager answer.

    `said` is what its client says while it runs. A request that fails eagerly must fail in the same way when it is
    served. What it raised is raised at the end.
    """
    parity_all(model, [request], inputs=inputs, schedules=schedules, seed=seed)


def parity_all(
    model: Model, requests: Sequence[Any], *, inputs: Sequence[ClientInput] = (), schedules: int = 5, seed: int = 0
) -> None:
    """The same for several requests that are served at the same time and share batches."""
    eager = [_run_eager(model, request, inputs) for request in requests]
    graphs = model.graphs()
    for schedule in range(schedules):
        chosen = random.Random(f"{seed}/{schedule}")
        placement = None if schedule == 0 else random_placement(graphs, chosen)
        how: dict[str, Any] = {"seed": chosen.randrange(1 << 30), "min_stream_buffers": chosen.random() < 0.5}
        runtime = LocalRuntime(model, placement, max_batched_tokens=chosen.choice((None, 1, 5, 30)), **how)
        for number, (want, got) in enumerate(zip(eager, runtime.run_all(requests, inputs), strict=True)):
            if (what := first_difference(want, got)) is not None:
                raise ParityError(
                    f"request {number} of {type(model).__name__}: {what}\n"
                    f"  schedule {schedule} of seed {seed}, placement {placement}"
                )
    for outcome in eager:
        if outcome.error is not None:
            raise outcome.error


def _run_eager(model: Model, request: Any, inputs: Sequence[ClientInput]) -> Outcome:
    try:
        return model.run(request, inputs)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the eager answer
        return Outcome([], error=error)


def random_placement(graphs: Mapping[str, ir.Walk], chosen: random.Random) -> Placement:
    """Any placement of these walks: components or single ops, replicas, spread states, different per walk."""
    ops = sorted({(n.component, n.op) for g in graphs.values() for n in ir.flat(g.body) if isinstance(n, ir.Call)})
    workers = [f"w{number}" for number in range(chosen.randint(1, 4))]

    def entry() -> PlacementRule:
        count = chosen.choice((1, 1, 1, 2, 3))
        return PlacementRule(tuple(chosen.sample(workers, min(count, len(workers)))), spread=chosen.random() < 0.3)

    place = {component: entry() for component, _ in ops}
    place |= {f"{component}.{op}": entry() for component, op in ops if chosen.random() < 0.4}
    walks = {
        name: {n.component: entry() for n in ir.flat(g.body) if isinstance(n, ir.Call)}
        for name, g in graphs.items()
        if chosen.random() < 0.2
    }
    return Placement(place, {name: entries for name, entries in walks.items() if entries})


def first_difference(want: Outcome, got: Outcome) -> str | None:
    """The first thing in which two outcomes differ, or None. Kinds of emissions are not ordered among each other."""
    if want.error is not None or got.error is not None:
        is_same = type(want.error) is type(got.error) and str(want.error) == str(got.error)
        return None if is_same else f"it ended with {got.error!r}, eager with {want.error!r}"
    wanted, had = _by_kind(want.emissions), _by_kind(got.emissions)
    for kind in sorted({*wanted, *had}):
        if len(wanted[kind]) != len(had[kind]):
            return f"{len(had[kind])} {kind} emissions, eager gave {len(wanted[kind])}"
        for number, (a, b) in enumerate(zip(wanted[kind], had[kind], strict=True)):
            if not is_identical(a.value, b.value) or a.clock != b.clock:
                return f"{kind} emission {number} is {b}, eager gave {a}"
    if not is_identical(want.result, got.result):
        return f"the result is {got.result!r}, eager gave {want.result!r}"
    if not is_identical(want.answers, got.answers):
        return f"the answers are {got.answers!r}, eager gave {want.answers!r}"
    return None


def _by_kind(emissions: list[Emission]) -> defaultdict[str, list[Emission]]:
    kinds: defaultdict[str, list[Emission]] = defaultdict(list)
    for emission in emissions:
        kinds[type(emission).__name__].append(emission)
    return kinds


def is_identical(a: Any, b: Any) -> bool:
    """Equal to the last bit: arrays by dtype, shape and content, and a NaN equal to a NaN."""
    if is_array(a) and is_array(b):
        return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (_is_nan(a) & _is_nan(b))).all())
    if isinstance(a, list | tuple) and type(cast("object", a)) is type(b):
        xs, ys = cast("Sequence[Any]", a), cast("Sequence[Any]", b)
        return len(xs) == len(ys) and all(is_identical(x, y) for x, y in zip(xs, ys, strict=True))
    return bool(a == b or (_is_nan(a) and _is_nan(b)))


def _is_nan(value: Any) -> Any:
    return value != value  # noqa: PLR0124 - only a NaN differs from itself
