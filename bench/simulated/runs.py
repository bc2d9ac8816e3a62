"""One case: the same arrivals on a real deployment and in the simulation, and the figures of both.

The speed of this machine changes with what else runs on it. The cost of the recorded requests is measured before and
after each real run, on the idle deployment; the prediction uses the mean of both, and nothing of the real run itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import msgspec

from bench.deadlines.traffic import Arrival as RealArrival
from bench.deadlines.traffic import play
from mstar.cli.bench.arrivals import make_arrivals
from mstar.cli.bench.metrics import percentile
from mstar.cli.capacity.calibration import MODEL_NAME, RealDeployment, op_factors
from mstar.cli.capacity.evaluation import attainment
from mstar.cli.capacity.traffic import PlannedTraffic, plan_traffic
from mstar.config import RuntimeConfig
from mstar.plan.planned_model import PlannedModel
from mstar.plan.profile import DeviceCosts, ModelProfile, op_name
from mstar.sim.capacity_sim import ClientResult
from mstar.sim.profile.profile_replay import simulate_profile

OPTIONS = RuntimeConfig(threads=1)
SEED = 8


@dataclass(frozen=True)
class Figures:
    """What the clients of a run received."""

    ttft_p50_s: float
    ttft_p95_s: float
    on_time: float
    """Share of requests that met their SLO."""
    requests_per_s: float


@dataclass(frozen=True)
class Comparison:
    """One case."""

    name: str
    real: Figures
    predicted: Figures
    requests: int
    drift: float
    """Cost of the recorded requests after the run, relative to before: 1 on an idle machine."""

    @property
    def errors(self) -> dict[str, float]:
        """Relative error of each predicted figure; infinite if the real one is 0 and the predicted one is not."""
        real, predicted = asdict(self.real), asdict(self.predicted)
        return {
            name: abs(predicted[name] / value - 1) if value else (0.0 if not predicted[name] else float("inf"))
            for name, value in real.items()
        }

    @property
    def worst(self) -> float:
        """The largest error."""
        return max(self.errors.values())


def figures(traffic: PlannedTraffic, results: Sequence[ClientResult]) -> Figures:
    """Figures of the counted requests."""
    records, counted = traffic.records(results), results[traffic.warm_up :]
    first = [record.ttft_s for record in records if record.is_complete]
    seconds = max(one.ended_at for one in counted) - min(one.submitted_at for one in counted)
    return Figures(
        percentile(first, 50), percentile(first, 95), attainment(records, traffic.slos), len(first) / seconds
    )


def capacity_per_s(profile: ModelProfile, workers: int) -> float:
    """Requests per second that this number of workers can do with the best batches."""
    device = profile.devices[0]
    best = [min([1.0, *(batch.ratio / batch.size for batch in op.batches)]) for op in device.ops]
    each_s = fmean(
        sum(seconds * best[call.op] for call, seconds in zip(request.calls, own, strict=True))
        for request, own in zip(profile.requests, device.calls_s, strict=True)
    )
    return workers / device.shared_ratio(workers) / each_s


def speed(profile: ModelProfile, deployment: RealDeployment, requests: Sequence[Any]) -> Mapping[str, float]:
    """Cost of each op now, relative to the profile."""
    device = profile.devices[0]

    def serve() -> None:
        for request in requests:
            deployment.serve(request)

    return op_factors(profile, device, deployment.measure(serve), servings=1)


def at_speed(profile: ModelProfile, factors: Mapping[str, float]) -> DeviceCosts:
    """The costs of a profile multiplied by these factors."""
    device = profile.devices[0]
    calls_s = [
        [
            seconds * factors.get(op_name(profile.ops[call.op]), 1.0)
            for call, seconds in zip(request.calls, own, strict=True)
        ]
        for request, own in zip(profile.requests, device.calls_s, strict=True)
    ]
    return msgspec.structs.replace(device, calls_s=calls_s)


class CaseRunner:
    """Runs the loads of one model under one placement."""

    def __init__(
        self, planned: PlannedModel, profile: ModelProfile, deployment: RealDeployment, requests: Sequence[Any]
    ) -> None:
        self._planned = planned
        self._profile = profile
        self._deployment = deployment
        self._requests = requests
        self._before = speed(profile, deployment, requests)

    @property
    def workers(self) -> int:
        """Number of workers of the placement."""
        return len(self._deployment.workers)

    def traffic(self, rate: float, seconds: float, slos: Mapping[str, Any]) -> PlannedTraffic:
        """Poisson arrivals of recorded requests of one kind."""
        (kind,) = slos
        arrivals = make_arrivals({kind: rate}, 1.0, SEED, seconds, 10_000)
        return plan_traffic(self._profile, arrivals, slos, SEED)

    def real(self, traffic: PlannedTraffic) -> list[ClientResult]:
        """Play the arrivals on the deployment."""
        arrivals = [RealArrival(one.at, self._requests[one.recorded], MODEL_NAME) for one in traffic.arrivals]
        return list(play(self._deployment.frontend, arrivals))

    def compare(self, name: str, traffic: PlannedTraffic) -> Comparison:
        """Play and simulate the same arrivals."""
        real = figures(traffic, self.real(traffic))
        after = speed(self._profile, self._deployment, self._requests)
        factors = {op: fmean((self._before[op], after[op])) for op in after.keys() & self._before.keys()}
        drift = fmean(after[op] / self._before[op] for op in factors)
        self._before = after
        device = at_speed(self._profile, factors)
        devices = dict.fromkeys(self._planned.model.components(), device)
        results = simulate_profile(self._planned, self._profile, devices, traffic.arrivals, options=OPTIONS)
        return Comparison(name, real, figures(traffic, results), len(traffic.arrivals) - traffic.warm_up, drift)
