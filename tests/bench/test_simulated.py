"""The comparison of predicted and real runs: errors, traffic, and the published results of other systems."""

from __future__ import annotations

import pytest

from bench.simulated.cases import CASES, ModelCase
from bench.simulated.headline import Subject, check_plan
from bench.simulated.published import published_results
from bench.simulated.runs import Comparison, Figures
from mstar.cli.bench.records import SloTarget
from mstar.cli.bench.request_kinds import REQUEST_KINDS


def test_the_largest_error_decides():
    one = Comparison("x", Figures(0.1, 0.2, 1.0, 2.0), Figures(0.11, 0.2, 0.9, 2.0), 10, 1.0)
    assert one.worst == pytest.approx(0.1)
    none = Comparison("x", Figures(0.1, 0.2, 0.0, 2.0), Figures(0.1, 0.2, 0.1, 2.0), 10, 1.0)
    assert none.worst == float("inf")


def test_there_are_three_models_and_two_placements_of_each():
    assert len(CASES) == 3
    assert {case.kind for case in CASES} <= REQUEST_KINDS.keys()
    assert {len(case.placements) for case in CASES} == {2}


def test_published_decode_steps_of_small_batches_are_reproduced():
    """Within 10 %. The step of a batch of 16 is not: the roofline has no prompts between the steps."""
    errors = {one.what: one.error for one in published_results() if one.rows <= 4}
    assert len(errors) == 4
    assert max(map(abs, errors.values())) < 0.1
    assert all(one.source.startswith("https://") for one in published_results())


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_recommended_placement_holds_its_slo_and_the_next_cheaper_one_does_not():
    """On real deployments. The ops of the model sleep, so the load of this machine hardly matters."""
    requests = ({"request": [5, 5]}, {"request": [6, 10]})
    placement = '[place]\ngenerator = ["a", "b", "c"]\n'
    target = "bench/models/tone_stream.py"
    case = ModelCase(target, "speech", requests, SloTarget(ttft=0.3, continuity=0.1), (placement,))
    result = check_plan(Subject(case), load=1.6, seconds=12.0)
    assert result["cheapest"]["placement"] == "3 x cpu: generator"
    assert result["is_right"], result
