"""Parity test: compare served results with the eager run of a model, bit for bit.

The eager run is the test oracle. LocalRuntime serves the same request under random schedules, placements, batches and
stream buffer sizes, all reproducible from one seed.
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
    """Serve a request under random schedules and placements; raise ParityError at the first difference from eager.

    `inputs` are further client inputs while the request runs. A request that fails eagerly must fail with the same
    error when it is served; that error is raised at the end.
    """
    parity_all(model, [request], inputs=inputs, schedules=schedules, seed=seed)


def parity_all(
    model: Model, requests: Sequence[Any], *, inputs: Sequence[ClientInput] = (), schedules: int = 5, seed: int = 0
) -> None:
    """Do the same for several requests that are served concurrently and share batches."""
    eager = [_run_eager(model, request, inputs) for request in requests]
    graphs = model.graphs()
    for schedule in range(schedules):
        rng = random.Random(f"{seed}/{schedule}")
        placement = None if schedule == 0 else random_placement(graphs, rng)
        options: dict[str, Any] = {"seed": rng.randrange(1 << 30), "min_stream_buffers": rng.random() < 0.5}
        runtime = LocalRuntime(model, placement, max_batched_tokens=rng.choice((None, 1, 5, 30)), **options)
        for number, (expected, actual) in enumerate(zip(eager, runtime.run_all(requests, inputs), strict=True)):
            if (difference := first_difference(expected, actual)) is not None:
                raise ParityError(
                    f"request {number} of {type(model).__name__}: {difference}\n"
                    f"  schedule {schedule} of seed {seed}, placement {placement}"
                )
    for outcome in eager:
        if outcome.error is not None:
            raise outcome.error


def _run_eager(model: Model, request: Any, inputs: Sequence[ClientInput]) -> Outcome:
    try:
        return model.run(request, inputs)
    except Exception as error:  # noqa: BLE001 - any error is the expected outcome
        return Outcome([], error=error)


def random_placement(graphs: Mapping[str, ir.Walk], rng: random.Random) -> Placement:
    """A random valid placement: of components or single ops, with replicas and spread states, different per walk."""
    ops = sorted({(n.component, n.op) for g in graphs.values() for n in ir.flat(g.body) if isinstance(n, ir.Call)})
    workers = [f"w{number}" for number in range(rng.randint(1, 4))]

    def random_rule() -> PlacementRule:
        count = rng.choice((1, 1, 1, 2, 3))
        return PlacementRule(tuple(rng.sample(workers, min(count, len(workers)))), spread=rng.random() < 0.3)

    place = {component: random_rule() for component, _ in ops}
    place |= {f"{component}.{op}": random_rule() for component, op in ops if rng.random() < 0.4}
    walks = {
        name: {n.component: random_rule() for n in ir.flat(g.body) if isinstance(n, ir.Call)}
        for name, g in graphs.items()
        if rng.random() < 0.2
    }
    return Placement(place, {name: rules for name, rules in walks.items() if rules})


def first_difference(expected: Outcome, actual: Outcome) -> str | None:
    """The first difference between two outcomes, or None. Emissions of different kinds have no order."""
    if expected.error is not None or actual.error is not None:
        is_same = type(expected.error) is type(actual.error) and str(expected.error) == str(actual.error)
        return None if is_same else f"served error {actual.error!r}, eager error {expected.error!r}"
    eager, served = _by_kind(expected.emissions), _by_kind(actual.emissions)
    for kind in sorted({*eager, *served}):
        if len(eager[kind]) != len(served[kind]):
            return f"served {len(served[kind])} {kind} emissions, eager {len(eager[kind])}"
        for number, (a, b) in enumerate(zip(eager[kind], served[kind], strict=True)):
            if not is_identical(a.value, b.value) or a.clock != b.clock:
                return f"{kind} emission {number}{_largest_difference(a.value, b.value)}: served {b}, eager {a}"
    if not is_identical(expected.result, actual.result):
        return f"served result {actual.result!r}, eager result {expected.result!r}"
    if not is_identical(expected.answers, actual.answers):
        return f"served answers {actual.answers!r}, eager answers {expected.answers!r}"
    return None


def _largest_difference(a: Any, b: Any) -> str:
    """The largest difference of two arrays of numbers, which their text can round away; empty for other values."""
    if not (is_array(a) and is_array(b) and a.shape == b.shape and 0 not in a.shape and "float" in str(a.dtype)):
        return ""
    return f" (largest difference {float(abs(a - b).max()):.2g})"


def _by_kind(emissions: list[Emission]) -> defaultdict[str, list[Emission]]:
    kinds: defaultdict[str, list[Emission]] = defaultdict(list)
    for emission in emissions:
        kinds[type(emission).__name__].append(emission)
    return kinds


def is_identical(a: Any, b: Any) -> bool:
    """Bitwise equality: arrays by dtype, shape and content; NaN equals NaN."""
    if is_array(a) and is_array(b):
        return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (_is_nan(a) & _is_nan(b))).all())
    if isinstance(a, list | tuple) and type(cast("object", a)) is type(b):
        xs, ys = cast("Sequence[Any]", a), cast("Sequence[Any]", b)
        return len(xs) == len(ys) and all(is_identical(x, y) for x, y in zip(xs, ys, strict=True))
    return bool(a == b or (_is_nan(a) and _is_nan(b)))


def _is_nan(value: Any) -> Any:
    return value != value  # noqa: PLR0124 - only a NaN differs from itself
