"""A long call in pieces gives what it gives whole, within the budget, and short calls do not wait for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar import ONE_ROW, Component, Float32, Int64, Layout, Tensor, op, padded, ragged, stacked
from mstar.engine.engine import LEAST, Engine
from mstar.engine.jobs import UNFINISHED, Done, Failed, Job
from mstar.errors import NotFinite
from tests.engine.parts import POISON, Paged, Poison, digest, finish, numbers, plain


def reading(paged, *lengths):
    """Jobs that read so many numbers, each into a state of its own."""
    parts = enumerate(np.arange(length) for length in lengths)
    return [Job({"x": part + 7 * row, "notes": paged.make_state(None)}) for row, part in parts]


def step(engine, paged, jobs):
    return engine.run(paged, Paged.ops()["read"], jobs)


# ---------------------------------------------------------------- right
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 12))
def test_in_pieces_is_as_whole_and_never_over_budget(lengths, budget):
    whole, cut = Paged(pages=40), Paged(pages=40)
    wanted = finish(Engine(), whole, "read", reading(whole, *lengths))
    jobs = reading(cut, *lengths)
    results = finish(Engine(token_budget=budget), cut, "read", jobs)
    assert [plain(result) for result in results] == [plain(result) for result in wanted]
    for job, length in zip(jobs, lengths, strict=True):
        assert job.arguments["notes"].values() == job.arguments["x"].tolist()
        assert len(job.arguments["x"]) == length, "the job still has all its arguments"
    assert max(cut.brought) <= budget
    assert sum(cut.brought) == sum(lengths)


def test_without_a_budget_everything_runs_at_once():
    paged = Paged(pages=40)
    assert all(isinstance(result, Done) for result in step(Engine(), paged, reading(paged, 9, 1, 0, 20)))
    assert paged.brought == [30]


def test_results_along_the_dimension_are_put_together():
    paged = Paged(pages=40)
    (result,) = finish(Engine(token_budget=2), paged, "read", reading(paged, 5))
    last, each, _ = result.values
    assert each.tolist() == [digest([*range(end)]) for end in range(1, 6)]
    assert last.tolist() == [each[-1]]


class Wide(Component):
    """Two parameters along T, one of them on its second axis; another without."""

    @op(batch=padded("T"), in_pieces=True)
    def both(
        self, x: Int64[Tensor, "T"], y: Int64[Tensor, "2 T"], z: Int64[Tensor, "2"], layout: Layout = ONE_ROW
    ) -> tuple[Int64[Tensor, "2 T"], int]:
        return x[:, None] + y + z[:, :, None], list(layout.lengths)


def test_every_parameter_with_the_dimension_is_cut():
    calls = [
        {"x": np.arange(size), "y": np.arange(2 * size).reshape(2, size), "z": numbers(100, 200)} for size in (5, 3, 1)
    ]
    results = finish(Engine(token_budget=4), Wide(), "both", [Job(call) for call in calls])
    for call, result in zip(calls, results, strict=True):
        assert result.values[0].tolist() == (call["x"] + call["y"] + call["z"][:, None]).tolist()
    assert results[0].values[1] < 5, "of the rest, what the last piece gave"


# ---------------------------------------------------------------- who goes first
def taken(budget, *lengths):
    """How far each of these calls gets in one run."""
    paged = Paged(pages=80)
    jobs = reading(paged, *lengths)
    results = step(Engine(token_budget=budget), paged, jobs)
    for job, result in zip(jobs, results, strict=True):
        assert isinstance(result, Done) or (result is UNFINISHED and job.done < len(job.arguments["x"]))
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
    assert taken(budget, *lengths) == far


def test_a_job_that_got_nothing_was_not_run():
    paged = Paged(pages=40)
    jobs = reading(paged, 6, 6)
    assert step(Engine(token_budget=6), paged, jobs)[1] is UNFINISHED
    assert (jobs[1].done, jobs[1].arguments["notes"].values(), paged.brought) == (0, [], [6])


def test_jobs_at_different_places_share_a_batch():
    paged, engine = Paged(pages=40), Engine(token_budget=4)
    first, late = reading(paged, 6, 3)
    assert step(engine, paged, [first]) == [UNFINISHED]
    assert [plain(r)[0] for r in step(engine, paged, [first, late])[:1]] == [[digest([*range(6)])]]
    assert (first.done, late.done, paged.brought) == (6, 2, [4, 4])


def test_a_job_with_bad_arguments_costs_no_budget():
    paged = Paged(pages=40)
    jobs = [Job({"x": np.zeros((9, 9)), "notes": paged.make_state(None)}), *reading(paged, 4)]
    results = step(Engine(token_budget=4), paged, jobs)
    assert [type(result) for result in results] == [Failed, Done]


# ---------------------------------------------------------------- what fails
def test_a_piece_that_fails_leaves_the_state_where_the_last_one_left_it():
    paged, engine = Paged(pages=40), Engine(token_budget=4)
    (good,) = reading(paged, 8)
    bad = Job({"x": numbers(1, 2, POISON, 4), "notes": paged.make_state(None)})
    assert step(engine, paged, [good, bad]) == [UNFINISHED, UNFINISHED]
    results = finish(engine, paged, "read", [bad, good])
    assert isinstance(results[0].error, Poison)
    assert plain(results[1])[0] == [digest([*range(8)])]
    paged.pool.check()
    assert len(bad.arguments["notes"].values()) < 4


class Goes(Component):
    """NaN along T where it is told so, and always in what is not used."""

    @op(batch=ragged("T"), in_pieces=True)
    def on(self, x: Float32[Tensor, "T"], layout: Layout = ONE_ROW) -> tuple[Float32[Tensor, "T"], Float32[Tensor, ""]]:
        return x, np.float32([np.nan if row in layout.unfinished else 1 for row in range(layout.rows)])


def test_what_is_not_used_may_be_anything_and_what_is_may_not():
    good, bad = (Job({"x": np.float32(x)}) for x in ([1, 2, 3, 4], [1, np.nan, 3, 4]))
    results = finish(Engine(token_budget=2), Goes(), "on", [good, bad])
    assert plain(results[0]) == [[1, 2, 3, 4], 1]
    assert isinstance(results[1].error, NotFinite)
    assert bad.done == 0


@pytest.mark.parametrize("batch", [stacked, None])
def test_an_op_without_a_dimension_is_not_in_pieces(batch):
    with pytest.raises(TypeError, match=r"op `go` is in_pieces, and batch=(stacked|alone) has no dimension to cut"):

        class Wrong(Component):
            @op(in_pieces=True, **({"batch": batch} if batch else {}))
            def go(self, x: Int64[Tensor, "T"]) -> int:
                return 1


def test_who_has_little_time_runs_few_positions():
    engine, paged = Engine(token_budget=512), Paged(pages=400)
    (job,) = reading(paged, 300)
    for seconds, count in ((0.1, 100), (0.0, LEAST), (10.0, 300 - 100 - LEAST)):
        engine._seconds[paged.name, "read"] = 0.001
        (result,) = engine.run(paged, Paged.ops()["read"], [job], seconds=seconds)
        assert paged.brought[-1] == count
    assert isinstance(result, Done)


def test_what_a_position_takes_is_learned():
    engine, paged = Engine(), Paged(pages=400)
    engine.run(paged, Paged.ops()["read"], reading(paged, 300))
    assert 0 < engine._seconds[paged.name, "read"] < 0.1
