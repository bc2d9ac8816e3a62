"""Random walks give the eager answer under random schedules, placements, batches and stream bounds."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, seed, settings
from hypothesis import strategies as st

from mstar import WalkError
from mstar.graph.jsonform import from_json, to_json
from mstar.testing.parity import parity_all
from tests.property.generator import Generator
from tests.property.program import Program

SCHEDULES = 5
LOOSE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    made = Generator(lambda below: draw(st.integers(0, below - 1))).program()
    try:
        made.graphs()
    except WalkError:
        assume(False)
    return made


@settings(max_examples=40, deadline=None, suppress_health_check=LOOSE)
@given(programs(), st.integers(0, 1 << 30))
def test_random_walks_are_served_as_they_run(program: Program, number: int) -> None:
    parity_all(program, [1, 2], schedules=SCHEDULES, seed=number)


@settings(max_examples=40, deadline=None, suppress_health_check=LOOSE)
@given(programs())
def test_random_walks_survive_json(program: Program) -> None:
    for graph in program.graphs().values():
        assert from_json(to_json(graph)) == graph


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(8))
def test_two_thousand_random_walks(shard: int) -> None:
    """Eight shards of 260 programs, each under five schedules: at least 2,000 programs and 10,000 runs."""
    ran = 0

    @seed(shard)
    @settings(max_examples=260, deadline=None, database=None, suppress_health_check=LOOSE)
    @given(programs(), st.integers(0, 1 << 30))
    def check(program: Program, number: int) -> None:
        nonlocal ran
        parity_all(program, [1, 2], schedules=SCHEDULES, seed=number)
        ran += 1

    check()
    assert ran >= 250
