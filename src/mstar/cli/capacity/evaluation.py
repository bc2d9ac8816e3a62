"""Evaluation of a candidate: its traffic in virtual time, at the mean, lowest and highest cost of the profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mstar.cli.bench.metrics import meets_slo, percentile
from mstar.cli.bench.records import RequestRecord, SloTarget
from mstar.cli.capacity.candidates import Candidate
from mstar.cli.capacity.traffic import PlannedTraffic
from mstar.config import RuntimeConfig
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.plan.profile import ModelProfile
from mstar.sim.capacity_sim import ClientResult
from mstar.sim.profile.profile_replay import simulate_profile
from mstar.walk.model import Model

UNITS = {"Audio": ("audio-minute", 60.0), "Image": ("image", 1.0), "Text": ("1k tokens", 1000.0)}
"""Unit of cost, and its size, by kind of emission."""
REQUEST_UNIT = ("1k requests", 1000.0)


class Figure(NamedTuple):
    """A figure at the mean cost, and at both ends of the error of the profile."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, mean: float, *others: float) -> Figure:
        """The figure with the range of all runs."""
        return cls(mean, min(mean, *others), max(mean, *others))


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Figures of one simulated run."""

    attainment: float
    """Lowest share, over the kinds of traffic, of requests that meet their SLO."""
    ttft_p50_s: float
    ttft_p95_s: float
    requests_per_s: float
    amounts_per_s: Mapping[str, float]
    """Delivered units of each kind per second, as in `UNITS`."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A candidate with its figures."""

    candidate: Candidate
    per_hour: float
    attainment: Figure
    ttft_p50_s: Figure
    ttft_p95_s: Figure
    requests_per_s: Figure
    cost_per_unit: Mapping[str, Figure]
    """Cost of each unit of output: see `UNITS`."""
    has_estimate: bool
    """Whether any cost is an estimate."""

    def holds(self, target: float) -> bool:
        """Whether the SLO is held at the highest cost too."""
        return self.attainment.low >= target


class Evaluator:
    """Simulates candidates of one model under one traffic."""

    def __init__(
        self, model: Model, profile: ModelProfile, traffic: PlannedTraffic, prices: Mapping[str, float]
    ) -> None:
        self._model = model
        self._profile = profile
        self._traffic = traffic
        self._prices = prices
        self._graphs = model.graphs()

    def evaluate(self, candidate: Candidate) -> Evaluation:
        """Simulate at the mean, the lowest and the highest cost."""
        planned = PlannedModel(self._model, plan(self._graphs, candidate.placement(self._profile)))
        devices = candidate.devices(self._profile)
        options = RuntimeConfig(max_batch_size=candidate.max_batch_size, threads=self._profile.threads)
        runs = [
            self._figures(
                simulate_profile(
                    planned, self._profile, devices, self._traffic.arrivals, options=options, factor=factor
                )
            )
            for factor in (0.0, -1.0, 1.0)
        ]
        per_hour = candidate.per_hour(self._prices)
        units = {unit for run in runs for unit in run.amounts_per_s}
        return Evaluation(
            candidate,
            per_hour,
            Figure.of(*(run.attainment for run in runs)),
            Figure.of(*(run.ttft_p50_s for run in runs)),
            Figure.of(*(run.ttft_p95_s for run in runs)),
            Figure.of(*(run.requests_per_s for run in runs)),
            {unit: Figure.of(*(per_hour / 3600 / run.amounts_per_s[unit] for run in runs)) for unit in sorted(units)},
            any(costs.is_estimate for costs in devices.values()),
        )

    def _figures(self, results: Sequence[ClientResult]) -> RunFigures:
        traffic = self._traffic
        records, counted = traffic.records(results), results[traffic.warm_up :]
        end = max([traffic.start_s + traffic.seconds, *(one.ended_at for one in counted)])
        first = [record.ttft_s for record in records if record.is_complete] or [end]
        return RunFigures(
            attainment(records, traffic.slos),
            percentile(first, 50),
            percentile(first, 95),
            sum(record.is_complete for record in records) / (end - traffic.start_s),
            _amounts_per_s(counted, end - traffic.start_s),
        )


def attainment(records: Sequence[RequestRecord], slos: Mapping[str, SloTarget]) -> float:
    """Lowest share, over the kinds, of requests that meet their SLO."""
    shares: list[float] = []
    for kind, slo in slos.items():
        met = [meets_slo(record, slo) for record in records if record.kind == kind]
        shares += [sum(met) / len(met)] if met else []
    return min(shares, default=1.0)


def _amounts_per_s(results: Sequence[ClientResult], seconds: float) -> dict[str, float]:
    """Delivered units per second."""
    totals: dict[str, float] = {}
    for result in results:
        for kind, (_, amount) in zip(result.kinds, result.chunks, strict=True):
            if kind in UNITS:
                unit, size = UNITS[kind]
                totals[unit] = totals.get(unit, 0.0) + (amount or 1.0) / size
    if not totals:
        unit, size = REQUEST_UNIT
        totals[unit] = sum(result.status == "ok" for result in results) / size
    return {unit: total / seconds for unit, total in totals.items() if total}
