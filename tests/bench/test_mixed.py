"""Mixed traffic comes as it was drawn, pictures are always wanted, and the claim holds only if all of it does."""

import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from bench.deadlines import mixed
from bench.deadlines.mixed import CHAT, PICTURES, ROBOT, SPEECH, Deployment, OpUsage, RunResult
from bench.deadlines.traffic import StreamResult
from mstar import Component, Image, Model, Tensor, UInt8, op, walk
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.requests import ImageRequest
from mstar.walk.load import load_model


class Brush(Component):
    @op
    def relief(self, seed: int) -> UInt8[Tensor, "1"]:
        time.sleep(0.002)
        return np.array([seed], np.uint8)


class Painter(Model):
    """Pictures that take two milliseconds."""

    def __init__(self) -> None:
        self.brush = Brush()

    @walk
    def draw(self, seed: int) -> Iterator[Image]:
        yield Image(self.brush.relief(seed))

    async def route(self, request: ImageRequest) -> None:
        await self.draw(request.seed)


def received(*firsts: float, chunks: int = 2) -> list[StreamResult]:
    """Clients with their first chunk after the given seconds, then one every half second, each a second of audio."""
    return [StreamResult(10.0, [(10.0 + first + at / 2, 1.0) for at in range(chunks)], status="ok") for first in firsts]


def ran(pictures: int = 100, *, speech: float = 0.1, reply: float = 0.01, of: int = 100) -> RunResult:
    """A run in which the first clients had to wait and the others did not."""
    rest = [0.01] * (of - 2)
    by_model = {
        SPEECH: received(speech, speech, *rest),
        CHAT: received(1.0),
        ROBOT: received(reply, reply, *rest, chunks=1),
    }
    return RunResult(
        by_model, {(PICTURES, "relief"): OpUsage(pictures, 8.0), (ROBOT, "torques"): OpUsage(of, 0.1)}, 10.0
    )


# ---------------------------------------------------------------- traffic
def test_traffic_is_the_same_for_the_same_seed_and_comes_in_order():
    drawn = [mixed.traffic({SPEECH: 30, CHAT: 20}, 20.0, seed) for seed in (1, 1, 2)]
    times = [[(one.at, one.model) for one in results] for results in drawn]
    assert times[0] == times[1] != times[2]
    assert times[0] == sorted(times[0], key=lambda one: one[0])
    robot = [at for at, model in times[0] if model == ROBOT]
    assert robot == pytest.approx([number / 5 for number in range(100)])
    assert Counter(model for _, model in times[0]) == {ROBOT: 100, SPEECH: 30, CHAT: 20}
    assert len({one.request for one in drawn[0] if one.model == SPEECH}) > 20
    assert {(one.model, one.slo) for one in drawn[0]} == {(name, mixed.SLOS[name]) for name in (SPEECH, CHAT, ROBOT)}


def test_pictures_are_wanted_all_the_time_and_the_robot_is_received():
    models = {PICTURES: Painter(), ROBOT: load_model("hopper")}
    deployed = {name: PlannedModel(model, plan(model.graphs())) for name, model in models.items()}
    with InProcessLauncher(deployed) as served:
        rule = Deployment(served)
        results = rule.run(mixed.traffic({}, 0.6, 0), 3.0)
        assert [len(one.chunks) for one in results.results[ROBOT]] == [1, 1, 1]
        assert results.ops[ROBOT, "torques"].calls == 3
        drawn = results.ops[PICTURES, "relief"]
        assert drawn.calls > 20, "one after another, and not only those that were wanted at first"
        assert drawn.seconds >= 0.002 * drawn.calls
        again = rule.run(mixed.traffic({}, 0.2, 0), 2.0)
        assert again.ops[ROBOT, "torques"].calls == 1, "what was before is not counted"
        assert again.seconds >= 2.0
        while rule.front.query_counts(served.conductor).result()["requests"]:  # pictures are cancelled
            time.sleep(0.01)


# ---------------------------------------------------------------- figures
def test_work_is_worth_what_it_takes_under_the_other_rule():
    theirs = RunResult({}, {(CHAT, "next_token"): OpUsage(10, 1.0), (PICTURES, "run"): OpUsage(30, 3.0)}, 10.0)
    small_batches = RunResult({}, {(CHAT, "next_token"): OpUsage(10, 4.0), (PICTURES, "run"): OpUsage(20, 2.0)}, 10.0)
    assert mixed.work_ratio(small_batches, theirs) == pytest.approx(0.75)
    longer = RunResult({}, dict(theirs.ops), 20.0)
    assert mixed.work_ratio(longer, theirs) == pytest.approx(0.5)
    promised = RunResult({}, {**theirs.ops, (SPEECH, "synthesize"): OpUsage(50, 5.0)}, 10.0)
    assert mixed.work_ratio(theirs, promised) == pytest.approx(1.0), "speech is not what is left over"


def test_runs_of_one_rule_are_joined():
    results = mixed.merge_runs([ran(), ran(50, reply=0.3)])
    assert len(results.results[ROBOT]) == 200
    assert results.ops[PICTURES, "relief"] == OpUsage(150, 16.0)
    assert results.seconds == 20.0
    figures = {name: value for name, _, value in mixed.figures(results)}
    assert figures["robot: later than 0.2 s"] == 1.0
    assert figures["pictures"] == 7.5
    assert figures["speech: chunks on time, 0 ms allowed"] == 100
    assert figures["engine: all"] == pytest.approx(81)
    assert figures["not served"] == 0


@pytest.mark.parametrize(
    ("ours", "holds"),
    [
        (ran(), True),
        (ran(89), False),
        (ran(speech=0.6), True),
        (ran(speech=0.6, of=50), False),
        (ran(reply=0.21), False),
        (ran(reply=0.21, of=200), True),
    ],
    ids=["as well", "less work", "two of 200 chunks late", "two of 100", "two of 100 replies late", "two of 200"],
)
def test_the_claim_holds_if_speech_robot_and_work_do(ours, holds):
    claim = mixed.claim(ours, ran())
    assert claim.is_met is holds
    assert claim.value == pytest.approx(ours.ops[PICTURES, "relief"].calls / 100)
    assert set(claim.details) == {"ours", "throughput"}


def test_a_missing_reply_counts_as_infinitely_late():
    assert [mixed.is_late(one) for one in (StreamResult(0.0), *received(0.1, 0.3))] == [True, False, True]


# ---------------------------------------------------------------- pictures
@pytest.mark.nightly
def test_a_network_in_parts_draws_what_the_whole_one_draws():
    from bench.deadlines.split_terrain import SplitTerrain

    (whole,) = load_model("terrain").draw(5, 0, 1, [1], 1)
    (parts,) = SplitTerrain().draw(5)
    assert np.abs(np.asarray(parts.value, int) - whole.value).max() <= 1
