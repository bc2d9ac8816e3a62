"""parity: examples are served as they run eagerly, and models that depend on what they must not are found out."""

import random
import re
from collections.abc import Iterator

import numpy as np
import pytest

from mstar import (
    Action,
    Audio,
    Component,
    Latents,
    Model,
    Outcome,
    ParityError,
    State,
    Text,
    View,
    loop,
    op,
    rows,
    stacked,
    walk,
)
from mstar.testing.parity import first_difference, is_identical, parity, parity_all, random_placement
from tests.plan.plan_harness import EXAMPLES, example

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


# ---------------------------------------------------------------- what is served is what runs
@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_served_as_it_runs(name):
    model, requests = example(name)
    parity_all(model, requests, schedules=6)


def test_many_copies_of_a_request_do_not_mix():
    model, requests = example("longform_asr")
    parity_all(model, [requests[1], requests[2], requests[1]], schedules=3, seed=5)


# ---------------------------------------------------------------- violations that parity detects
class Tally(State):
    def __init__(self):
        self.seen = []


class ImpureOps(Component):
    """Ops that do what an op must not."""

    def __init__(self):
        self.last = 0

    @op
    def after(self, x: int) -> int:
        """Depends on who was served before."""
        self.last, before = x, self.last
        return x + before

    @op
    def note(self, x: int, tally: Tally) -> int:
        tally.seen.append(x)
        return len(tally.seen)

    @op
    def peek(self, x: int, tally: View[Tally]) -> int:
        """Changes what it only may read."""
        tally.seen.append(-x)
        return x

    @op(batch=stacked)
    def first(self, x: int) -> int:
        """Gives every row what the first one gets."""
        return [rows(x)[0] + 1 for _ in rows(x)]

    @op(batch=stacked)
    def plus(self, x: int) -> int:
        return [value + 1 for value in rows(x)]


class ImpureModel(Model):
    def __init__(self):
        self.part = ImpureOps()

    @walk
    def order(self, x: int) -> Iterator[Latents]:
        yield Latents(self.part.after(x))

    @walk
    def views(self, x: int, tally: Tally) -> Iterator[Latents]:
        self.part.note(x, tally)
        self.part.peek(x, tally)
        yield Latents(self.part.note(x, tally))

    @walk
    def batch(self, x: int) -> int:
        s = loop(steps=3, x=x)
        for _ in s:
            s.x = self.part.first(s.x)
        return s.x

    @walk
    def sound(self, x: int) -> int:
        return self.part.plus(x)

    async def route(self, request):
        name, x = request
        if name == "views":
            return await self.views(x, self.part.state(Tally))
        return await getattr(self, name)(x)


def test_a_sound_model_is_not_accused():
    parity_all(ImpureModel(), [("sound", 1), ("sound", 5), ("sound", 9)], schedules=20)


def test_an_op_that_depends_on_what_ran_before_is_detected():
    with pytest.raises(ParityError, match="Latents emission 0: served"):
        parity_all(ImpureModel(), [("order", 1), ("order", 10)], schedules=5)


def test_an_op_that_changes_what_it_views_is_detected():
    with pytest.raises(ParityError, match=r"Latents emission 0: served Latents\(value=2\), eager Latents\(value=3\)"):
        parity(ImpureModel(), ("views", 4), schedules=30)


def test_a_wrong_batch_body_is_detected():
    parity(ImpureModel(), ("batch", 1), schedules=5)  # alone it is right
    with pytest.raises(ParityError, match="served result"):
        parity_all(ImpureModel(), [("batch", 1), ("batch", 10), ("batch", 100)], schedules=5)


def mismatch_text(seed):
    with pytest.raises(ParityError) as caught:
        parity_all(ImpureModel(), [("sound", 0), ("batch", 1), ("batch", 10)], schedules=9, seed=seed)
    return str(caught.value)


def test_a_parity_error_names_the_schedule_that_reproduces_it():
    text = mismatch_text(7)
    match = re.fullmatch(
        r"request ([12]) of ImpureModel: served result (\d+), eager result (\d+)\n"
        r"  schedule (\d) of seed 7, placement (None|Placement\(.*\))",
        text,
    )
    assert match
    assert {"1": "4", "2": "13"}[match[1]] == match[3] != match[2]
    assert text == mismatch_text(7)


# ---------------------------------------------------------------- random placements
def placements(name, count=150):
    graphs = example(name)[0].graphs()
    made = [random_placement(graphs, random.Random(seed)) for seed in range(count)]
    for placement in made:
        placement.check(graphs)
    return made


def test_random_placements_cover_all_that_a_placement_can_say():
    made = placements("bagel")
    entries = [entry for p in made for table in (p.place, *p.walks.values()) for entry in table.values()]
    assert {len(entry.workers) for entry in entries} == {1, 2, 3}
    assert {entry.spread for entry in entries} == {False, True}
    assert {len(p.workers()) for p in made} == {1, 2, 3, 4}
    assert {"." in key for p in made for key in p.place} == {False, True}
    assert {name for p in made for name in p.walks} == {"read", "look", "think", "answer", "draw"}
    assert any(not p.walks for p in made)


def test_a_random_placement_is_repeated_by_its_seed():
    assert placements("rag", 20) == placements("rag", 20)


def test_a_model_without_calls_has_a_random_placement():
    class Echo(Model):
        @walk
        def echo(self, x: int) -> int:
            return x

    parity(Echo(), {"x": 3}, schedules=20)


# ---------------------------------------------------------------- what counts as a difference
@pytest.mark.parametrize(
    ("eager", "served", "difference"),
    [
        ([Text(1)], [], "served 0 Text emissions, eager 1"),
        ([], [Text(1), Text(2)], "served 2 Text emissions, eager 0"),
        ([Text(1)], [Latents(1)], "served 1 Latents emissions, eager 0"),
        ([Text(1), Text(2)], [Text(2), Text(1)], "Text emission 0: served Text(value=2), eager Text(value=1)"),
        ([Audio(1, rate=8)], [Audio(1, rate=9)], "Audio emission 0: served Audio(value=1, rate=9), eager"),
        ([Action(1, rate=8)], [Action(2, rate=8)], "Action emission 0: served"),
    ],
)
def test_emissions_that_differ(eager, served, difference):
    assert first_difference(Outcome(eager), Outcome(served)).startswith(difference)


def test_kinds_of_emissions_are_not_ordered_among_each_other():
    assert first_difference(Outcome([Text(1), Latents(2)]), Outcome([Latents(2), Text(1)])) is None


def test_results_that_differ():
    assert first_difference(Outcome([], 1), Outcome([], 2)) == "served result 2, eager result 1"
    assert first_difference(Outcome([], (1, [2])), Outcome([], (1, [2]))) is None


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (np.array([1, 2]), np.array([1, 2]), True),
        (np.array([1, 2]), np.array([1, 3]), False),
        (np.array([1, 2]), np.array([1.0, 2.0]), False),
        (np.array([1, 2], np.int64), np.array([1, 2], np.int32), False),
        (np.array([1, 1]), np.array([[1, 1]]), False),
        (np.zeros(0), np.zeros(0), True),
        ([np.array([1]), 2], [np.array([1]), 2], True),
        ([np.array([1])], [np.array([2])], False),
        ([1, 2], [1], False),
        (1, 1, True),
        (1, 2, False),
        (None, 0, False),
    ],
)
def test_same(one, other, is_same):
    assert is_identical(one, other) is is_same
    assert is_identical(other, one) is is_same


def test_the_same_nan_is_the_same():
    assert is_identical(np.array([np.nan, 1.0]), np.array([np.nan, 1.0]))
