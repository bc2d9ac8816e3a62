"""Stages within this process: walks, repeated runs, the original library, random schedules, batches and chunks."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterable, Sequence
from typing import Any, cast

from mstar.cli.prove.refuted import Refuted, refuting
from mstar.cli.prove.subject import Subject
from mstar.engine.engine import Engine
from mstar.engine.executor import BatchCall, Executor
from mstar.errors import format_count
from mstar.testing.local_runtime import LocalRuntime
from mstar.testing.parity import first_difference, is_identical, random_placement
from mstar.walk.component import Component
from mstar.walk.model import Outcome
from mstar.walk.states import State
from mstar.walk.values import is_array

TOLERANCE = 1e-3
"""Maximum difference from the original library, relative to the largest absolute value of an emission."""
_PURE_FIX = (
    "derive random numbers from the request (its seed), read no clock, and keep what belongs to a request in a State"
)
_LEFT_FIX = "keep what belongs to a request in a State (`component.state(Kind)`), not in attributes of the component"
_STATE_FIX = (
    "a state must be independent after `fork`, complete in `export` and `load_state`, and an op must not change its "
    "arguments in place"
)
_BATCH_FIX = (
    "each row of a batch must be computed from its own row: check `@op(batch=...)`, reductions over the first "
    "dimension, padding that is not masked, and the order of the results; if only last bits differ, a kernel "
    "depends on the size of its batch (docs/decisions/0080-deterministic-by-default.md)"
)
_CHUNK_FIX = "an op with `chunked=True` must continue where the last chunk of the request ended: check its states"


def check_walks(subject: Subject) -> str:
    """Every walk is traced."""
    return f"{format_count(len(subject.components), 'component')}, {format_count(len(subject.graphs), 'walk')}"


def check_repeats(subject: Subject) -> str:
    """The same request gives the same outcome: again after the others, and in another order in a second instance."""
    subject.require_emissions()
    for number, expected in enumerate(subject.expected):
        again = subject.run(number)
        if (difference := first_difference(expected, again)) is None:
            continue
        if first_difference(again, subject.run(number)) is None:
            problem = f"request {number} has another outcome after requests have run: {_reworded(difference)}"
            raise Refuted(problem, _LEFT_FIX)
        raise Refuted(f"two runs of request {number} differ: {_reworded(difference)}", _PURE_FIX)
    other = subject.new_model()
    for number, expected in reversed([*enumerate(subject.expected)]):
        if (difference := first_difference(expected, subject.run(number, other))) is not None:
            problem = f"request {number} differs in a second instance of the model, where the last request runs first"
            raise Refuted(f"{problem}: {_reworded(difference)}", f"{_LEFT_FIX}; load or seed all weights")
    return f"{format_count(len(subject.requests), 'request')} of {subject.source}, three times, in two instances"


def check_reference(subject: Subject) -> str:
    """The values are those of the original library."""
    if subject.reference is None:
        return "not compared with a library: define `reference(request)` beside the model"
    count = 0
    for number, (request, outcome) in enumerate(zip(subject.requests, subject.expected, strict=True)):
        with refuting("reference(request)", "return the values of the emissions that the library gives"):
            values = list(cast("Iterable[Any]", subject.reference(request)))
        emitted = [emission.value for emission in outcome.emissions]
        if len(values) != len(emitted):
            problem = f"request {number} has {len(emitted)} emissions, the library gives {len(values)}"
            raise Refuted(problem, "compare where the loops end")
        for index, (actual, expected) in enumerate(zip(emitted, values, strict=True)):
            if (difference := _relative_difference(actual, expected)) is not None:
                problem = f"emission {index} of request {number} is not that of the library: {difference}"
                fix = "compare op by op, from the first one: weights, scales, positions, masks, dtypes"
                raise Refuted(problem, fix)
            count += 1
    return f"{format_count(count, 'value')} equal within {TOLERANCE:g}"


def check_schedules(subject: Subject, schedules: int) -> str:
    """One request at a time, in any order of its calls, on any placement."""
    expected = subject.expected
    for number, request in enumerate(subject.requests):
        for seed in range(schedules):
            random_numbers = random.Random(f"{number}/{seed}")
            where = random_placement(subject.graphs, random_numbers) if seed else None
            runtime = LocalRuntime(subject.model, where, seed=seed, min_stream_buffers=bool(seed % 2), max_batch_size=1)
            with refuting(f"request {number} alone, in schedule {seed}", _STATE_FIX):
                outcome = runtime.run(request)
            if (difference := first_difference(expected[number], outcome)) is not None:
                raise Refuted(f"request {number} differs in schedule {seed}: {difference}", _STATE_FIX)
    return f"{schedules} random schedules and placements of each request"


def check_batches(subject: Subject, schedules: int) -> str:
    """All requests at once: their calls share batches."""
    _serve_together(subject, schedules, None, _BATCH_FIX)
    if any(op.chunked for component in subject.model.components().values() for op in component.ops().values()):
        for budget in (1, 3, 7):
            _serve_together(subject, max(1, schedules // 4), budget, _CHUNK_FIX)
    return f"{schedules} random batches of {format_count(len(subject.requests), 'request')}"


def check_states_freed(subject: Subject) -> str:
    """Nothing keeps the state of a request that has ended."""
    before = _living_states()
    for number in range(len(subject.requests)):
        subject.run(number)
    LocalRuntime(subject.model).run_all(subject.requests)
    gc.collect()
    kinds = sorted({type(state).__name__ for state in gc.get_objects() if _is_state(state) and id(state) not in before})
    if kinds:
        problem = f"states of requests that have ended are kept: {', '.join(kinds)}"
        raise Refuted(problem, "remove references to states from components, caches and closures")
    return "no state of an ended request is kept"


class _BatchFailures(Executor):
    """Records batches that failed. The engine hides them: it runs their calls again, one by one."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def run_batch(self, component: Component, call: BatchCall) -> list[tuple[Any, ...]] | Exception:
        """Run a batch."""
        outcome = super().run_batch(component, call)
        if isinstance(outcome, Exception) and call.count > 1:
            what = f"{component.name}.{call.op.name} failed for {call.count} calls together"
            self.failed.append(f"{what}: {type(outcome).__name__}: {outcome}")
        return outcome


def _serve_together(subject: Subject, schedules: int, budget: int | None, fix: str) -> None:
    expected = subject.expected
    for seed in range(schedules):
        executor, runtime = _BatchFailures(), LocalRuntime(subject.model, seed=seed)
        runtime.engine = Engine(max_batched_tokens=budget, executor=executor)
        with refuting("requests that share batches", fix):
            outcomes = runtime.run_all(subject.requests)
        chunks = "" if budget is None else f" in chunks of {format_count(budget, 'position')}"
        _compare(expected, outcomes, f"together{chunks}", fix)
        if executor.failed:
            raise Refuted(executor.failed[0], fix)


def _compare(expected: Sequence[Outcome], actual: Sequence[Outcome], how: str, fix: str) -> None:
    for number, pair in enumerate(zip(expected, actual, strict=True)):
        if (difference := first_difference(*pair)) is not None:
            raise Refuted(f"request {number} differs {how}: {difference}", fix)


def _living_states() -> set[int]:
    gc.collect()
    return {id(one) for one in gc.get_objects() if _is_state(one)}


def _is_state(value: object) -> bool:
    return issubclass(type(value), State)


def _reworded(difference: str) -> str:
    return difference.replace("served", "later").replace("eager", "first")


def _relative_difference(actual: Any, expected: Any) -> str | None:
    """How an emission differs from the value of the library; None if it does not."""
    if not is_array(actual) or not is_array(expected) or not _is_floating(actual):
        same = is_identical(_plain(actual), _plain(expected))
        return None if same else f"{_short(actual)} instead of {_short(expected)}"
    a, b = _numbers(actual), _numbers(expected)
    if a.shape != b.shape:
        return f"shape {tuple(a.shape)} instead of {tuple(b.shape)}"
    scale = float(abs(b).max()) if b.size else 0.0
    difference = float(abs(a - b).max()) if b.size else 0.0
    if difference <= TOLERANCE * max(scale, 1e-12):
        return None
    return f"relative difference {difference / max(scale, 1e-12):.2g}, limit {TOLERANCE:g}"


def _is_floating(value: Any) -> bool:
    return "float" in str(value.dtype)


def _numbers(value: Any) -> Any:
    """A numpy array in float64."""
    return (value.float().cpu().numpy() if hasattr(value, "float") else value).astype("float64")


def _plain(value: Any) -> Any:
    return value.tolist() if is_array(value) else value


def _short(value: Any) -> str:
    text = repr(_plain(value))
    return text if len(text) <= 80 else f"{text[:77]}..."
