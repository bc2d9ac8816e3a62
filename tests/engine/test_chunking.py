"""Chunked calls: same result as in one run, within the token budget, and short calls do not wait."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar import ONE_ROW, Component, Float32, Int64, Layout, Tensor, op, padded, ragged, stacked
from mstar.engine import engine as engine_module
from mstar.engine.chunking import split_budget
from mstar.engine.engine import MIN_CHUNK_POSITIONS, Engine
from mstar.engine.jobs import UNFINISHED, Job, JobDone, JobFailed
from mstar.errors import NotFinite
from tests.engine.toy_components import (
    POISON,
    PagedComponent,
    PagedLog,
    Poison,
    digest,
    int_array,
    run_to_completion,
    to_comparable,
)


def read_jobs(paged, *lengths):
    """Jobs that read the given counts of numbers, each into its own state."""
    parts = enumerate(np.arange(length) for length in lengths)
    return [Job({"x": part + 7 * row, "notes": paged.make_state(None)}) for row, part in parts]


def step(engine, paged, jobs):
    return engine.run(paged, PagedComponent.ops()["read"], jobs)


# ---------------------------------------------------------------- right
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 12))
def test_chunked_equals_whole_and_stays_within_budget(lengths, budget):
    whole, cut = PagedComponent(pages=40), PagedComponent(pages=40)
    expected = run_to_completion(Engine(), whole, "read", read_jobs(whole, *lengths))
    jobs = read_jobs(cut, *lengths)
    results = run_to_completion(Engine(max_batched_tokens=budget), cut, "read", jobs)
    assert [to_comparable(result) for result in results] == [to_comparable(result) for result in expected]
    for job, length in zip(jobs, lengths, strict=True):
        assert job.arguments["notes"].values() == job.arguments["x"].tolist()
        assert len(job.arguments["x"]) == length, "the job still has all its arguments"
    assert max(cut.batch_positions) <= budget
    assert sum(cut.batch_positions) == sum(lengths)


def test_without_a_budget_everything_runs_at_once():
    paged = PagedComponent(pages=40)
    assert all(isinstance(result, JobDone) for result in step(Engine(), paged, read_jobs(paged, 9, 1, 0, 20)))
    assert paged.batch_positions == [30]


def test_results_along_the_dimension_are_put_together():
    paged = PagedComponent(pages=40)
    (result,) = run_to_completion(Engine(max_batched_tokens=2), paged, "read", read_jobs(paged, 5))
    last, each, _ = result.values
    assert each.tolist() == [digest([*range(end)]) for end in range(1, 6)]
    assert last.tolist() == [each[-1]]


class Wide(Component):
    """Two parameters along T, one of them on its second axis; another without."""

    @op(batch=padded("T"), chunked=True)
    def both(
        self, x: Int64[Tensor, "T"], y: Int64[Tensor, "2 T"], z: Int64[Tensor, "2"], layout: Layout = ONE_ROW
    ) -> tuple[Int64[Tensor, "2 T"], int]:
        return x[:, None] + y + z[:, :, None], list(layout.lengths)


def test_every_parameter_with_the_dimension_is_cut():
    calls = [
        {"x": np.arange(size), "y": np.arange(2 * size).reshape(2, size), "z": int_array(100, 200)}
        for size in (5, 3, 1)
    ]
    results = run_to_completion(Engine(max_batched_tokens=4), Wide(), "both", [Job(call) for call in calls])
    for call, result in zip(calls, results, strict=True):
        assert result.values[0].tolist() == (call["x"] + call["y"] + call["z"][:, None]).tolist()
    assert results[0].values[1] < 5, "of the rest, what the last piece gave"


# ---------------------------------------------------------------- who goes first
def positions_done(budget, *lengths):
    """How far each of these calls gets in one run."""
    paged = PagedComponent(pages=80)
    jobs = read_jobs(paged, *lengths)
    results = step(Engine(max_batched_tokens=budget), paged, jobs)
    for job, result in zip(jobs, results, strict=True):
        assert isinstance(result, JobDone) or (result is UNFINISHED and job.done < len(job.arguments["x"]))
    return [len(job.arguments["notes"].values()) for job in jobs]


@pytest.mark.parametrize(
    ("budget", "lengths", "far"),
    [
        (8, (20, 1, 1, 1), [5, 1, 1, 1]),  # single tokens are whole, a prompt gets the rest
        (8, (20, 20), [8, 0]),  # prompts in order
        (8, (5, 20), [5, 3]),
        (8, (20, 4), [4, 4]),  # no more than an equal share counts as short
        (8, (20, 5), [8, 0]),
        (2, (1, 1, 1), [1, 1, 0]),  # more calls than budget
        (2, (9, 1, 1, 1), [0, 1, 1, 0]),
        (1, (9,), [1]),
        (3, (0, 9, 0), [0, 3, 0]),
    ],
)
def test_short_calls_are_first_and_whole_then_long_ones_in_order(budget, lengths, far):
    assert positions_done(budget, *lengths) == far


def test_a_job_that_got_nothing_was_not_run():
    paged = PagedComponent(pages=40)
    jobs = read_jobs(paged, 6, 6)
    assert step(Engine(max_batched_tokens=6), paged, jobs)[1] is UNFINISHED
    assert (jobs[1].done, jobs[1].arguments["notes"].values(), paged.batch_positions) == (0, [], [6])


def test_a_job_that_got_nothing_is_not_a_row_of_the_batch():
    rows = []

    class Counting(PagedComponent):
        @op(batch=ragged("T"), chunked=True)
        def read(self, x: Int64[Tensor, "T"], notes: PagedLog, layout: Layout = ONE_ROW) -> Int64[Tensor, "1"]:
            """The length of each row."""
            rows.append(layout.rows)
            return np.array([[length] for length in layout.lengths])

    paged = Counting(pages=40)
    Engine(max_batched_tokens=6).run(paged, Counting.ops()["read"], read_jobs(paged, 6, 6))
    assert rows == [1]


@pytest.mark.parametrize(("budget", "chunk"), [(None, 5), (9, 5), (3, 3)])
def test_the_next_chunk_begins_where_the_last_one_ended(budget, chunk):
    [job] = read_jobs(PagedComponent(pages=40), 9)
    job.done = 4
    split_budget(PagedComponent.ops()["read"], [job], budget)
    assert (job.end, job.chunk_length) == (4 + chunk, chunk)


def test_jobs_at_different_places_share_a_batch():
    paged, engine = PagedComponent(pages=40), Engine(max_batched_tokens=4)
    first, late = read_jobs(paged, 6, 3)
    assert step(engine, paged, [first]) == [UNFINISHED]
    assert [to_comparable(r)[0] for r in step(engine, paged, [first, late])[:1]] == [[digest([*range(6)])]]
    assert (first.done, late.done, paged.batch_positions) == (6, 2, [4, 4])


def test_a_job_with_bad_arguments_costs_no_budget():
    paged = PagedComponent(pages=40)
    jobs = [Job({"x": np.zeros((9, 9)), "notes": paged.make_state(None)}), *read_jobs(paged, 4)]
    results = step(Engine(max_batched_tokens=4), paged, jobs)
    assert [type(result) for result in results] == [JobFailed, JobDone]


# ---------------------------------------------------------------- what fails
def test_a_failing_chunk_leaves_the_state_of_the_previous_chunk():
    paged, engine = PagedComponent(pages=40), Engine(max_batched_tokens=4)
    (good,) = read_jobs(paged, 8)
    bad = Job({"x": int_array(1, 2, POISON, 4), "notes": paged.make_state(None)})
    assert step(engine, paged, [good, bad]) == [UNFINISHED, UNFINISHED]
    results = run_to_completion(engine, paged, "read", [bad, good])
    assert isinstance(results[0].error, Poison)
    assert to_comparable(results[1])[0] == [digest([*range(8)])]
    paged.pool.check()
    assert len(bad.arguments["notes"].values()) < 4


class NanUntilFinished(Component):
    """Returns its input along T, and NaN for unfinished rows."""

    @op(batch=ragged("T"), chunked=True)
    def run(
        self, x: Float32[Tensor, "T"], layout: Layout = ONE_ROW
    ) -> tuple[Float32[Tensor, "T"], Float32[Tensor, ""]]:
        return x, np.float32([np.nan if row in layout.unfinished else 1 for row in range(layout.rows)])


def test_unused_outputs_can_be_nan_and_used_ones_cannot():
    good, bad = (Job({"x": np.float32(x)}) for x in ([1, 2, 3, 4], [1, np.nan, 3, 4]))
    results = run_to_completion(Engine(max_batched_tokens=2), NanUntilFinished(), "run", [good, bad])
    assert to_comparable(results[0]) == [[1, 2, 3, 4], 1]
    assert isinstance(results[1].error, NotFinite)
    assert bad.done == 0


@pytest.mark.parametrize("batch", [stacked, None])
def test_an_op_without_a_dimension_cannot_be_chunked(batch):
    with pytest.raises(TypeError, match=r"op `go` is chunked, but batch=(stacked|alone) has no dimension to split"):

        class Wrong(Component):
            @op(chunked=True, **({"batch": batch} if batch else {}))
            def go(self, x: Int64[Tensor, "T"]) -> int:
                return 1


def test_a_short_deadline_runs_few_positions():
    engine, paged = Engine(max_batched_tokens=512), PagedComponent(pages=400)
    (job,) = read_jobs(paged, 300)
    for seconds, count in ((0.1, 100), (0.0, MIN_CHUNK_POSITIONS), (10.0, 300 - 100 - MIN_CHUNK_POSITIONS)):
        engine._position_cost_s[paged.name, "read"] = 0.001
        (result,) = engine.run(paged, PagedComponent.ops()["read"], [job], time_limit_s=seconds)
        assert paged.batch_positions[-1] == count
    assert isinstance(result, JobDone)


def test_what_a_position_takes_is_learned(monkeypatch):
    engine, paged = Engine(), PagedComponent(pages=400)
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(perf_counter=iter((10.0, 13.0)).__next__))
    engine.run(paged, PagedComponent.ops()["read"], read_jobs(paged, 300))
    assert engine._position_cost_s[paged.name, "read"] == pytest.approx(3 / 300)
