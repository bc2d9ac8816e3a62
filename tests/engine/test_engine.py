"""The engine runs a batch; a job that fails does so alone, and every other gets what it would get alone."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar import ONE_ROW, Component, Float, Float32, Int64, Layout, Tensor, op, padded, ragged, stacked
from mstar.engine.engine import Engine
from mstar.engine.jobs import JobDone, JobFailed
from mstar.errors import BadShape, DeviceFailed, NotFinite, RowsFailed
from tests.engine.toy_components import (
    FAILS_IN_BATCH,
    GIVES_NAN,
    NAMES_ROW,
    POISON,
    STYLES,
    FailingOps,
    NumberLog,
    Poison,
    int_array,
    run,
    to_comparable,
)

GOOD = [
    int_array(1, 2),
    int_array(3, 4),
    int_array(5, 6),
    int_array(7, 8),
    int_array(9, 10),
    int_array(11, 12),
    int_array(13, 14),
]


def check(name, parts):
    """Run one batch: each job must fail for its own fault only, and its notes hold what it read or nothing of it."""
    states = [NumberLog() for _ in parts]
    for row, state in enumerate(states):
        state.seen.append(100 * row)
    component = FailingOps()
    calls = [{"x": part, "notes": state} for part, state in zip(parts, states, strict=True)]
    results = run(component, name, *calls)
    for row, (part, state, result) in enumerate(zip(parts, states, results, strict=True)):
        if fault := next((fault for fault in (NAMES_ROW, POISON, GIVES_NAN) if fault in part), None):
            assert isinstance(result.error, NotFinite if fault == GIVES_NAN else Poison)
            assert state.seen == [100 * row]
        else:
            assert to_comparable(result) == [sum(state.seen)]
            assert state.seen == [100 * row, *part]
    return results, component.ran


# ---------------------------------------------------------------- one fails, the others do not
@pytest.mark.parametrize("name", STYLES)
def test_a_batch_gives_what_each_job_gives_alone(name):
    results, ran = check(name, GOOD)
    assert all(isinstance(result, JobDone) for result in results)
    assert ran == ([1] * 7 if name == "lone" else [7])


@pytest.mark.parametrize("at", [0, 3, 7])
@pytest.mark.parametrize("poison", [POISON, NAMES_ROW, GIVES_NAN])
@pytest.mark.parametrize("name", STYLES)
def test_a_poisonous_job_fails_alone_and_leaves_its_state_as_it_was(name, poison, at):
    results, _ = check(name, [*GOOD[:at], int_array(1, poison), *GOOD[at:]])
    assert [isinstance(result, JobFailed) for result in results] == [row == at for row in range(8)]


@pytest.mark.parametrize("name", STYLES)
def test_a_batch_of_poison(name):
    results, _ = check(name, [int_array(POISON, 1)] * 3)
    assert all(isinstance(result, JobFailed) for result in results)


@pytest.mark.parametrize("name", STYLES)
def test_a_job_that_fails_only_in_a_batch_gets_its_result(name):
    results, _ = check(name, [*GOOD, int_array(1, FAILS_IN_BATCH)])
    assert all(isinstance(result, JobDone) for result in results)


@pytest.mark.parametrize("name", STYLES)
@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([1, 2, 3, POISON, GIVES_NAN, NAMES_ROW, FAILS_IN_BATCH]), min_size=1, max_size=3),
        max_size=12,
    )
)
def test_any_batch_gives_what_each_job_gives_alone(name, parts):
    check(name, [int_array(*part) for part in parts])


def test_rows_that_an_op_names_are_not_searched_for():
    _, ran = check("stack", [*GOOD[:4], int_array(1, NAMES_ROW), *GOOD[4:]])
    assert ran == [8, 7, 1]


def test_a_failing_job_is_isolated_by_bisection():
    _, ran = check("stack", [*GOOD[:4], int_array(1, POISON), *GOOD[4:]])
    assert ran == [8, 4, 4, 2, 1, 1, 2]


def test_an_unbatched_op_runs_once_per_job_even_if_one_fails():
    _, ran = check("lone", [*GOOD[:4], int_array(1, POISON), *GOOD[4:]])
    assert ran == [1] * 8


class FailingDevice(Component):
    """Its device fails, and stays so."""

    def __init__(self):
        self.calls = 0

    @op(batch=stacked)
    def go(self, x: Int64[Tensor, "1"]) -> Int64[Tensor, "1"]:
        self.calls += 1
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")


def test_no_request_is_blamed_for_a_device_that_failed():
    component = FailingDevice()
    with pytest.raises(DeviceFailed, match=r"device failed in .*go: CUDA error: device-side assert triggered\n  fix:"):
        run(component, "go", *({"x": int_array(x)} for x in (1, 0, 2)))
    assert component.calls == 1


class FailingEngine(Component):
    """It is run by an engine, such as vLLM, that reports that it cannot go on."""

    calls = 0

    @op(batch=stacked)
    def go(self, x: Int64[Tensor, "1"]) -> Int64[Tensor, "1"]:
        self.calls += 1
        raise DeviceFailed("vLLM failed")


def test_no_request_is_blamed_for_an_engine_that_failed():
    component = FailingEngine()
    with pytest.raises(DeviceFailed, match="vLLM failed"):
        run(component, "go", *({"x": int_array(x)} for x in (1, 0, 2)))
    assert component.calls == 1


class WrongRowNames(Component):
    """Names rows that are not there."""

    @op(batch=stacked)
    def go(self, x: Int64[Tensor, "1"]) -> Int64[Tensor, "1"]:
        if 0 in x:
            raise RowsFailed({9: Poison("no such row")})
        return x


def test_rows_that_are_not_there_are_not_believed():
    results = run(WrongRowNames(), "go", *({"x": int_array(x)} for x in (1, 0, 2)))
    assert [to_comparable(result) for result in results] == [[[1]], repr(results[1].error), [[2]]]
    assert str(results[1].error) == "row 9: Poison: no such row"
    with pytest.raises(RowsFailed, match="row 9"):
        WrongRowNames().go(int_array(0))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_is_not_a_jobs_failure(error):
    class Ends(Component):
        @op(batch=stacked)
        def go(self, x: int) -> int:
            raise error

    with pytest.raises(error):
        run(Ends(), "go", {"x": 1}, {"x": 2})


def test_no_jobs():
    assert run(FailingOps(), "look") == []


# ---------------------------------------------------------------- states
def test_jobs_that_read_one_state_share_a_batch():
    notes = NumberLog()
    notes.seen += [4, 5]
    assert run(FailingOps(), "look", *[{"notes": notes}] * 3) == [JobDone((9,))] * 3


def test_jobs_that_extend_one_state_do_so_in_order_even_if_one_fails():
    notes = NumberLog()
    parts = [int_array(1), int_array(2), int_array(POISON), int_array(4)]
    results = run(FailingOps(), "stack", *({"x": part, "notes": notes} for part in parts))
    assert notes.seen == [1, 2, 4]
    assert [isinstance(result, JobDone) for result in results] == [True, True, False, True]


def test_a_state_without_a_snapshot_fails_its_job():
    class Stubborn(NumberLog):
        def snapshot(self):
            raise Poison("not copied")

    calls = [{"x": int_array(1, 2), "notes": notes} for notes in (NumberLog(), Stubborn(), NumberLog())]
    results = run(FailingOps(), "stack", *calls)
    assert [isinstance(result, JobDone) for result in results] == [True, False, True]
    assert run(FailingOps(), "look", {"notes": Stubborn()}) == [JobDone((0,))], "what is only read is not marked"


def test_what_is_not_a_state_fails_its_job():
    calls = [{"x": int_array(1, 2), "notes": notes} for notes in (NumberLog(), None, NumberLog())]
    results = run(FailingOps(), "stack", *calls)
    assert [to_comparable(result)[:1] for result in results] == [[3.0], "A", [3.0]]
    assert isinstance(results[1].error, AttributeError)


@pytest.mark.parametrize(
    "bad", [int_array(1, POISON), int_array(1, NAMES_ROW), int_array(1, GIVES_NAN), int_array()[None], [1]]
)
def test_an_error_keeps_no_state_alive(bad):
    gc.disable()  # what is in a cycle would be freed some time, which is too late for its pages
    try:
        states = [NumberLog() for _ in range(4)]
        calls = [{"x": x, "notes": s} for x, s in zip([*GOOD[:3], bad], states, strict=True)]
        error = run(FailingOps(), "stack", *calls)[3].error
        alive = [weakref.ref(state) for state in states]
        del states, calls
        assert [ref() for ref in alive] == [None] * 4
    finally:
        gc.enable()
    assert isinstance(error, Exception)


def test_where_an_error_and_its_causes_were_raised_is_kept_as_text():
    class Chained(Component):
        @op(batch=stacked)
        def go(self, x: int) -> int:
            try:
                self.inner()
            except KeyError as error:
                raise Poison("outer") from error

        def inner(self) -> None:
            raise KeyError("inner")

    (result,) = run(Chained(), "go", {"x": 1})
    outer, inner = result.error, result.error.__cause__
    assert outer.__traceback__ is inner.__traceback__ is None
    assert 'raise Poison("outer") from error' in outer.__notes__[0]
    assert 'raise KeyError("inner")' in inner.__notes__[0]
    assert str(outer) == "outer"


# ---------------------------------------------------------------- shapes
@pytest.mark.parametrize("name", ["stack", "rag", "pad"])
@pytest.mark.parametrize("bad", [np.zeros((2, 2), np.int64), np.int64(3), [1, 2], None])
def test_an_argument_that_has_not_the_declared_dimensions_fails_its_job(name, bad):
    calls = [{"x": x, "notes": NumberLog()} for x in (GOOD[0], bad, GOOD[1])]
    component = FailingOps()
    results = run(component, name, *calls)
    assert [isinstance(result, JobDone) for result in results] == [True, False, True]
    assert component.ran == [2]
    assert isinstance(results[1].error, BadShape)
    with pytest.raises(BadShape, match="expects `x` as int64"):
        getattr(FailingOps(), name)(bad, NumberLog())


def test_a_bad_argument_is_reported_with_its_shape():
    (result,) = run(FailingOps(), "stack", {"x": np.zeros((2, 3)), "notes": NumberLog()})
    message = "op `stack` expects `x` as int64[T], got shape (2, 3)\n  fix: pass an array with 1 dimension"
    assert str(result.error) == message


def test_jobs_of_different_shapes_run_in_batches_of_their_own():
    parts = [int_array(1), int_array(1, 2), int_array(3), int_array(4, 5), int_array(1, 2, 3)]
    _, ran = check("stack", parts)
    assert ran == [2, 2, 1]


def test_jobs_of_different_dtypes_run_in_batches_of_their_own():
    component = FailingOps()
    values = [np.ones(2, np.float32), np.ones(2, np.float64), torch.ones(2), np.ones(2, np.float32)]
    results = run(component, "scale", *({"x": value} for value in values))
    assert [result.values[0].dtype for result in results] == [value.dtype for value in values]
    assert component.ran == [2, 1, 1]


class Wrong(Component):
    """Always gives three."""

    @op(batch=stacked)
    def rows(self, x: int) -> int:
        return [1, 2, 3]

    @op(batch=ragged("T"))
    def positions(self, x: Int64[Tensor, "T"]) -> Int64[Tensor, "T"]:
        return int_array(1, 2, 3)


def test_a_result_of_another_size_fails():
    (result,) = run(Wrong(), "rows", {"x": 1})
    assert str(result.error).startswith(
        "an op returned 3 entries of int for a batch of 1\n  fix: return one entry per row"
    )
    results = run(Wrong(), "rows", *[{"x": 1}] * 3)
    assert results == [JobDone((1,)), JobDone((2,)), JobDone((3,))]
    one, three = run(Wrong(), "positions", {"x": int_array(0)}, {"x": int_array(0, 0, 0)})
    assert str(one.error).startswith("an op returned 3 entries of int64[T] for a batch of 1\n")
    assert to_comparable(three) == [[1, 2, 3]]


# ---------------------------------------------------------------- NaN and infinity
class Floats(Component):
    """Gives what it is given."""

    @op(batch=stacked)
    def same(self, x: Float[Tensor, "T"]) -> tuple[int, Float[Tensor, "T"]]:
        return [1] * len(x), x

    @op(batch=stacked)
    def listed(self, x: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        return [*x]

    @op
    def lone(self, x: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        return x

    @op(batch=padded("T"))
    def hole(self, x: Float32[Tensor, "T"], layout: Layout = ONE_ROW) -> Float32[Tensor, "T"]:
        """NaN wherever it was filled up."""
        return np.where(x == 0, np.float32("nan"), x)


@pytest.mark.parametrize("make", [np.float32, np.float16, torch.tensor, lambda x: torch.tensor(x).bfloat16()])
@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("name", ["same", "listed", "lone"])
def test_a_row_that_is_not_finite_fails(name, bad, make):
    component = Floats()
    component.name = "f"
    results = run(component, name, *({"x": make(x)} for x in ([1.0, 2.0], [3.0, float(bad)], [5.0, 6.0])))
    assert [isinstance(result, JobDone) for result in results] == [True, False, True]
    assert isinstance(results[1].error, NotFinite)
    assert str(results[1].error).startswith(f"f.{name} returned NaN or infinity in float")
    with pytest.raises(NotFinite):
        getattr(component, name)(make([float(bad)]))


def test_what_was_only_filled_up_may_be_anything():
    results = run(Floats(), "hole", {"x": np.ones(1, np.float32)}, {"x": np.ones(3, np.float32)})
    assert [to_comparable(result) for result in results] == [[[1.0]], [[1.0, 1.0, 1.0]]]


# ---------------------------------------------------------------- configuration
def test_a_budget_of_zero_is_rejected():
    with pytest.raises(ValueError, match="max_batched_tokens=0 allows no batch\n  fix: set at least 1"):
        Engine(max_batched_tokens=0)


def test_states_are_made_and_forked():
    engine, component = Engine(), FailingOps()
    notes = engine.new_state(component, NumberLog)
    notes.seen.append(1)
    fork = engine.fork(notes)
    fork.seen.append(2)
    assert (notes.seen, fork.seen) == ([1], [1, 2])
