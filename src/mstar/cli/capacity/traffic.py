"""Traffic of a capacity plan: arrivals of recorded requests, and the SLO of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from mstar.cli.bench.arrivals import Arrival
from mstar.cli.bench.records import RequestRecord, SloTarget
from mstar.errors import LoadError, format_names
from mstar.plan.profile import ModelProfile
from mstar.sim.capacity_sim import ClientResult
from mstar.sim.profile.profile_replay import RecordedArrival

OUTPUT_KINDS = {"chat": ("Text", "Audio"), "speech": ("Audio",), "transcriptions": ("Text",), "images": ("Image",)}
"""Kinds of emissions that a client of a kind of traffic waits for; of the others, all."""
WARM_UP_SPACING = 1.5
"""Time between two warm-up requests, relative to the cost of the first one."""


@dataclass(frozen=True, slots=True)
class PlannedTraffic:
    """Requests of a simulated run. The first `warm_up` ones are not counted: they teach workers their costs."""

    arrivals: Sequence[RecordedArrival]
    kinds: Sequence[str]
    """Kind of each arrival."""
    warm_up: int
    slos: Mapping[str, SloTarget]
    start_s: float
    """Time of the first counted arrival at the earliest."""
    seconds: float
    """Duration of the counted arrivals."""

    def records(self, results: Sequence[ClientResult]) -> list[RequestRecord]:
        """What the clients of the counted requests observed."""
        pairs = zip(self.kinds, results, strict=True)
        return [_record(kind, result) for kind, result in list(pairs)[self.warm_up :]]


def plan_traffic(
    profile: ModelProfile, arrivals: Sequence[Arrival], slos: Mapping[str, SloTarget], seed: int
) -> PlannedTraffic:
    """Repeat a random recorded request of the kind of each arrival, after one warm-up request of each kind."""
    by_kind = {kind: [i for i, one in enumerate(profile.requests) if one.kind == kind] for kind in slos}
    if missing := [kind for kind, numbers in by_kind.items() if not numbers]:
        problem = f"the profile of {profile.model} has no request of kind {format_names(missing)}"
        raise LoadError(f"{problem}\n  fix: use {format_names(profile.kinds)}, or profile requests of this kind")
    costs_s = [sum(calls) for calls in profile.devices[0].calls_s]
    at, planned, kinds = 0.0, list[RecordedArrival](), list[str]()
    for kind, numbers in by_kind.items():
        cheapest = min(numbers, key=lambda number: costs_s[number])
        planned.append(RecordedArrival(at, cheapest))
        kinds.append(kind)
        at += WARM_UP_SPACING * costs_s[cheapest]
    warm_up, rng = len(planned), Random(f"{seed}/recorded")
    for arrival in arrivals:
        planned.append(RecordedArrival(at + arrival.at, rng.choice(by_kind[arrival.kind])))
        kinds.append(arrival.kind)
    seconds = arrivals[-1].at if arrivals else 0.0
    return PlannedTraffic(planned, kinds, warm_up, slos, at, seconds)


def _record(kind: str, result: ClientResult) -> RequestRecord:
    """A simulated result as one of a load test. A response without streamed outputs arrives at its end."""
    record = RequestRecord(kind, result.submitted_at, result.submitted_at, ended_at=result.ended_at)
    shown = OUTPUT_KINDS.get(kind)
    chunks = zip(result.kinds, result.chunks, strict=True)
    record.chunks = [(at, seconds or 1.0) for name, (at, seconds) in chunks if shown is None or name in shown]
    record.chunks = record.chunks or [(result.ended_at, 1.0)]
    if result.status == "ok":
        record.status = 200
    else:
        record.status = int(result.status) if result.status.isdigit() else 500
        record.error = f"status {result.status}"
    return record
