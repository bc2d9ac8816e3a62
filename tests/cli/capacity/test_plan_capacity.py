"""`mstar plan-capacity`: traffic, candidates in order of cost, the cheapest that holds its SLO, and what is written."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from mstar.cli.bench.arrivals import Arrival
from mstar.cli.bench.records import SloTarget
from mstar.cli.capacity.candidates import Candidate, Group, generate_candidates, required_workers
from mstar.cli.capacity.estimate import estimate
from mstar.cli.capacity.evaluation import Evaluator
from mstar.cli.capacity.plan_command import read_prices
from mstar.cli.capacity.report import format_plan, placement_file, plot
from mstar.cli.capacity.search import CapacityPlan, SearchLimits, search
from mstar.cli.capacity.traffic import PlannedTraffic, plan_traffic
from mstar.cli.main import main
from mstar.errors import LoadError
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.plan.profile import ESTIMATE, MEASURED, DeviceCosts, ModelProfile
from mstar.plan.roofline import DecoderSize
from mstar.sim.profile.profile_recorder import ProfiledRequest, ProfileRecorder
from mstar.walk.load import load_model

TARGET = "bench/models/tone_stream.py"
SLO = {"speech": SloTarget(ttft=0.2, continuity=0.05)}
SECONDS = 4.0


@pytest.fixture(scope="module")
def profile() -> ModelProfile:
    """A tone takes 20 ms and sounds for 100 ms: a worker keeps up with five streams."""
    model = load_model(TARGET)
    requests = [ProfiledRequest("speech", (5, 2)), ProfiledRequest("speech", (6, 3))]
    recorder = ProfileRecorder(PlannedModel(model, plan(model.graphs())), requests, rounds=1)
    profile = recorder.record(TARGET, DeviceCosts("cpu", MEASURED, "here"))
    profile.devices[0].calls_s = [[0.02] * len(request.calls) for request in profile.requests]
    for op in profile.devices[0].ops:
        op.low, op.high = 0.9, 1.1
    return profile


def make_traffic(profile: ModelProfile, rate: float) -> PlannedTraffic:
    arrivals = [Arrival(number / rate, "speech") for number in range(int(SECONDS * rate))]
    return plan_traffic(profile, arrivals, SLO, seed=0)


def make_plan(profile: ModelProfile, rate: float, max_workers: int = 4) -> CapacityPlan:
    traffic, prices = make_traffic(profile, rate), {"cpu": 0.5}
    evaluator = Evaluator(load_model(TARGET), profile, traffic, prices)
    return search(evaluator, profile, traffic, prices, SearchLimits(0.95, [64], max_workers, 10))


# ---------------------------------------------------------------- candidates
def test_as_many_workers_are_required_as_the_traffic_keeps_busy(profile: ModelProfile):
    traffic = make_traffic(profile, 10.0)
    required = required_workers(profile, traffic.arrivals[1:], SECONDS, profile.devices[0])
    assert required["generator"] == pytest.approx(10 * 0.02 * 5, rel=0.1)  # of 4 and 6 tones a request


def test_candidates_come_in_order_of_cost():
    required = {"small": {"lm": 1.4, "tts": 0.3}, "large": {"lm": 0.4, "tts": 0.1}}
    prices = {"small": 1.0, "large": 3.5}
    result = list(islice(generate_candidates(required, prices, 6, 64), 25))
    costs = [one.per_hour(prices) for one in result]
    assert costs == sorted(costs)
    assert len(set(result)) == len(result)
    divisions = {tuple(sorted(tuple(sorted(group.components)) for group in one.groups)) for one in result}
    assert divisions == {(("lm",), ("tts",)), (("lm", "tts"),)}
    assert {group.device for one in result for group in one.groups} == {"small", "large"}


def test_a_light_component_gets_no_worker_of_its_own():
    required = {"cpu": {"lm": 1.0, "merger": 0.001}}
    result = list(islice(generate_candidates(required, {"cpu": 1.0}, 4, 64), 4))
    assert {group.components for one in result for group in one.groups} == {("lm", "merger")}


def test_a_placement_with_gpus_has_devices(profile: ModelProfile):
    profile = msgspec.structs.replace(profile, devices=[DeviceCosts("A100", MEASURED, "", "cuda")])
    text = Candidate((Group(("generator",), "A100", 2),), 64).to_toml(profile)
    assert '"generator" = ["generator-0", "generator-1"]' in text
    assert 'device = "cuda:0"' in text
    assert 'device = "cuda:1"' in text


# ---------------------------------------------------------------- the search
def test_the_cheapest_placement_that_holds_is_found(profile: ModelProfile):
    result = make_plan(profile, 16.0)  # 1.6 workers are busy
    assert result.best is not None
    assert result.best.candidate.workers == 2
    assert result.best.attainment.low >= 0.95
    assert result.next_cheaper is not None
    assert result.next_cheaper.candidate.workers == 1
    assert result.next_cheaper.attainment.value < 0.5
    assert [one.per_hour for one in result.front] == sorted(one.per_hour for one in result.front)
    assert result.best.cost_per_unit["audio-minute"].value == pytest.approx(2 * 0.5 / 60 / (16 * 0.5), rel=0.15)


def test_every_figure_has_the_error_of_the_profile(profile: ModelProfile):
    (first, *_) = make_plan(profile, 8.0).evaluations
    assert first.ttft_p95_s.low < first.ttft_p95_s.value < first.ttft_p95_s.high


def test_no_placement_holds(profile: ModelProfile):
    result = make_plan(profile, 24.0, max_workers=2)
    assert result.best is None
    assert "holds the SLO" in format_plan(result, profile, "EUR", 0.95)


def test_a_kind_without_a_recorded_request_is_refused(profile: ModelProfile):
    with pytest.raises(LoadError, match="has no request of kind `chat`"):
        plan_traffic(profile, [Arrival(0.0, "chat")], {"chat": SloTarget()}, 0)


# ---------------------------------------------------------------- estimates
def test_an_estimate_is_marked_everywhere(profile: ModelProfile):
    costs = estimate(profile, "H100-80GB", {"generator.next_tone": DecoderSize(10**9, 1000)})
    assert costs.source == ESTIMATE
    assert costs.calls_s[0][0] == pytest.approx(0.0002 + 2e9 / 3350e9 / 0.75, rel=0.01)
    estimated = msgspec.structs.replace(profile, devices=[costs])
    traffic = make_traffic(estimated, 4.0)
    evaluator = Evaluator(load_model(TARGET), estimated, traffic, {"H100-80GB": 2.0})
    result = search(evaluator, estimated, traffic, {"H100-80GB": 2.0}, SearchLimits(0.95, [64], 2, 3))
    assert result.best is not None
    assert "* ESTIMATE, not measured: the costs of H100-80GB" in format_plan(result, estimated, "USD", 0.95)
    assert "# ESTIMATE" in placement_file(result.best, estimated, "traffic", "USD")
    assert "ESTIMATED" in plot(result, "USD")


def test_an_unknown_device_has_no_estimate(profile: ModelProfile):
    with pytest.raises(LoadError, match="there is no data sheet of `H100`"):
        estimate(profile, "H100", {})


# ---------------------------------------------------------------- the command
def test_the_command_writes_a_placement_that_can_be_served(profile: ModelProfile, tmp_path: Path, capsys):
    profile.save(tmp_path / "p.json")
    (tmp_path / "prices.toml").write_text('currency = "EUR"\n[per_hour]\ncpu = 0.1\n')
    traffic = "\n".join(json.dumps({"at": number / 12, "kind": "speech"}) for number in range(40))
    (tmp_path / "traffic.jsonl").write_text(traffic)
    words = ["plan-capacity", TARGET, "--profile", str(tmp_path / "p.json"), "--prices", str(tmp_path / "prices.toml")]
    words += ["--traffic", str(tmp_path / "traffic.jsonl"), "--slo", "speech=ttft:0.2,continuity:0.05"]
    words += ["-o", str(tmp_path / "place.toml"), "--plot", str(tmp_path / "front.svg")]
    words += ["--json", str(tmp_path / "plan.json"), "--target", "0.9"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "EUR per audio-minute" in shown
    assert main(["plan", TARGET, "--placement", str(tmp_path / "place.toml")]) == 0
    assert "<svg xmlns=" in (tmp_path / "front.svg").read_text()
    written = json.loads((tmp_path / "plan.json").read_text())
    assert [one["is_best"] for one in written["evaluations"]].count(True) == 1
    assert written["sources"] == {"cpu": "measured"}


@pytest.mark.parametrize("text", ["", "[per_hour]\n", "[per_hour]\ncpu = 0\n", "x = 1\n[per_hour]\ncpu = 1\n", "cpu ="])
def test_prices_are_checked(text: str, tmp_path: Path):
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(LoadError, match=r"prices\.toml.*\n  fix: write:"):
        read_prices(path)
