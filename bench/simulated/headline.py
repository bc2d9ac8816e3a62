"""Predicted against real: TTFT, requests on time and throughput of real models, by load and placement.

By default one model under one placement; `--cases all` runs three models at three loads under two placements, and
deploys what the planner recommends. A case is right if each of its four figures is within 15 %.

Workload: Hibari, SmolLM2-135M and Whisper tiny.en with their published weights, one thread per worker; requests of one
to four sentences, 16 to 64 tokens, and two recordings, with Poisson arrivals.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from bench.claims import Claim, Row, print_table
from bench.simulated.cases import CASES, LOADS, ModelCase
from bench.simulated.published import published_results
from bench.simulated.runs import OPTIONS, CaseRunner, Comparison, capacity_per_s
from mstar.cli.capacity.calibration import RealDeployment, calibrate
from mstar.cli.capacity.evaluation import Evaluator, attainment
from mstar.cli.capacity.profile_command import load_on_devices
from mstar.cli.capacity.profiled_requests import read_requests
from mstar.cli.capacity.search import SearchLimits, search
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel, load_planned_models
from mstar.plan.profile import MEASURED, DeviceCosts, ModelProfile
from mstar.server.state import ServedModel
from mstar.sim.profile.profile_recorder import ProfiledRequest, ProfileRecorder
from mstar.walk.model import Model

MAX_ERROR, TARGET = 0.15, 8 / 9
SHORT_S, LONG_S = 7.0, 30.0
"""Seconds of traffic of a case, by default and with `--cases all`."""
ROUNDS = 2
PLANNED_LOAD, PLANNED_TARGET = 1.0, 0.9
"""Traffic of the planner, relative to the capacity of one worker, and the share of requests that must meet the SLO."""
PRICES = {"cpu": 1.0}


class Subject:
    """A model, loaded and recorded in this process."""

    def __init__(self, case: ModelCase) -> None:
        self.case = case
        self.model: Model = load_planned_models({"model": case.target}, {"model": ""})["model"].model
        with tempfile.TemporaryDirectory() as folder:
            path = case.write_requests(Path(folder))
            self.requests: Sequence[ProfiledRequest] = read_requests(
                path, ServedModel.from_model(case.target, self.model)
            )
        planned = PlannedModel(self.model, plan(self.model.graphs()))
        load_on_devices(planned, OPTIONS.threads)
        recorder = ProfileRecorder(planned, self.requests, rounds=ROUNDS)
        self.recorded = recorder.record(case.target, DeviceCosts("cpu", MEASURED, "this machine"))

    @property
    def contents(self) -> list[Any]:
        """The requests themselves."""
        return [one.request for one in self.requests]

    @contextmanager
    def deploy(self, placement: str) -> Iterator[tuple[CaseRunner, ModelProfile]]:
        """A calibrated deployment on this machine."""
        profile = deepcopy(self.recorded)
        planned = load_planned_models({"model": self.case.target}, {"model": placement})["model"]
        with RealDeployment(self.case.target, placement, OPTIONS) as deployment:
            calibrate(profile, planned, self.contents, deployment)
            yield CaseRunner(planned, profile, deployment, self.contents), profile


def compare(subject: Subject, placement: str, seconds: float) -> Iterator[Comparison]:
    """All loads under one placement."""
    slos = {subject.case.kind: subject.case.slo}
    with subject.deploy(placement) as (runner, profile):
        for load in LOADS:
            workers = runner.workers
            traffic = runner.traffic(load * capacity_per_s(profile, workers), seconds, slos)
            name = f"{subject.case.target}, {workers} worker{'s' * (workers > 1)}, load {load}"
            comparison = runner.compare(name, traffic)
            print(f"{name}: largest error {comparison.worst:.0%}", file=sys.stderr, flush=True)
            yield comparison


def check_plan(subject: Subject, load: float, seconds: float) -> dict[str, Any]:
    """Deploy the cheapest placement that holds an SLO by the planner, and the next cheaper one; what each attains."""
    slos = {subject.case.kind: subject.case.slo}
    with subject.deploy(subject.case.placements[-1]) as (runner, profile):
        traffic = runner.traffic(load * capacity_per_s(profile, 1), seconds, slos)
    evaluator = Evaluator(subject.model, profile, traffic, PRICES)
    capacity_plan = search(evaluator, profile, traffic, PRICES, SearchLimits(PLANNED_TARGET, [64], 3, 6))
    result: dict[str, Any] = {"target": PLANNED_TARGET}
    for name, one in (("cheapest", capacity_plan.best), ("next cheaper", capacity_plan.next_cheaper)):
        if one is None:
            continue
        with subject.deploy(one.candidate.to_toml(profile)) as (runner, _):
            real = attainment(traffic.records(runner.real(traffic)), slos)
        result[name] = {
            "placement": str(one.candidate),
            "predicted": round(one.attainment.value, 3),
            "real": round(real, 3),
        }
    holds = {name: result[name]["real"] >= PLANNED_TARGET for name in ("cheapest", "next cheaper") if name in result}
    return result | {"is_right": holds == {"cheapest": True, "next cheaper": False}}


def rows(comparisons: Sequence[Comparison]) -> list[Row]:
    """Every figure, real and predicted."""
    results = list[Row]()
    for one in comparisons:
        for how, each in (("real", one.real), ("predicted", one.predicted)):
            results += [
                Row(f"{one.name}, {how}: TTFT p50", "ms", [1000 * each.ttft_p50_s]),
                Row(f"{one.name}, {how}: TTFT p95", "ms", [1000 * each.ttft_p95_s]),
                Row(f"{one.name}, {how}: requests on time", "%", [100 * each.on_time]),
                Row(f"{one.name}, {how}: throughput", "requests/s", [each.requests_per_s]),
            ]
    return results


def simulated(cases: str = "short") -> Claim:
    """The share of cases whose figures are all within the error."""
    is_long = cases == "all"
    chosen = CASES if is_long else CASES[:1]
    comparisons, planned = list[Comparison](), dict[str, Any]()
    for case in chosen:
        subject = Subject(case)
        for placement in case.placements if is_long else case.placements[:1]:
            comparisons += compare(subject, placement, LONG_S if is_long else SHORT_S)
        if is_long and case is CASES[0]:
            planned = check_plan(subject, PLANNED_LOAD, LONG_S)
    print_table(rows(comparisons))
    published = published_results()
    print_table(
        [Row(f"{one.what}, estimated", "ms per step", [1000 * one.estimate_s]) for one in published],
    )
    share = sum(one.worst <= MAX_ERROR for one in comparisons) / len(comparisons)
    more = {
        "cases": {
            one.name: {
                "errors": {name: round(error, 3) for name, error in one.errors.items()},
                "requests": one.requests,
                "drift": round(one.drift, 2),
            }
            for one in comparisons
        },
        "published": {one.what: {"error": round(one.error, 3), "source": one.source} for one in published},
        "planner": planned,
    }
    text = (
        f"TTFT p50 and p95, requests on time and throughput are within {MAX_ERROR:.0%} of the real run in "
        f"{sum(one.worst <= MAX_ERROR for one in comparisons)} of {len(comparisons)} cases"
    )
    is_met = share >= TARGET and (not planned or planned["is_right"])
    return Claim(text, round(share, 3), round(TARGET, 3), is_met, more)
