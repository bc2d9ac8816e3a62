"""Simulated and real runs of the same traffic under three scheduling rules, and the error of the simulation.

The simulation predicts scheduling, not the load of the machine: the costs in its call trace are scaled by the ratio of
the engine time of the real run to that in the trace. The factor is reported; it is 1 on an idle machine. Then ten
minutes of traffic are simulated over a range of loads.

Workload: Hibari with its published weights, the sentences and the mix of answers and readings of
`bench/deadlines/speech.py`, Poisson arrivals for 7 s at 0.7 and 1.0 of the capacity of one engine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from bench.claims import Claim, Row, print_table
from bench.deadlines.policies import FirstComeFirstServed, VoxServePolicy
from bench.deadlines.traffic import SENTENCES, Arrival, StreamResult, play, poisson, share_on_time, speech
from mstar.frontend.actor import FrontendActor
from mstar.launch.in_process import InProcessLauncher
from mstar.models.hibari.tts import Hibari
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.requests import SpeechRequest
from mstar.sim.call_trace import CallTrace, record_trace, simulate
from mstar.wire.messages import Peer
from mstar.worker.scheduling.policy import SchedulingPolicy

NAME = "model"
POLICIES: dict[str, Callable[[], SchedulingPolicy | None]] = {
    "by slack": lambda: None,
    "first come": FirstComeFirstServed,
    "VoxServe's": VoxServePolicy,
}
LOADS = (0.7, 1.0)
"""Of what one engine can do at most, by what was measured."""
SECONDS, SEED = 7.0, 8
WARM_UP_S = 1.5
"""Before it a worker says every sentence once, so that it knows what they cost."""
MAX_ERROR = 0.15
TIE = 0.02
"""Shares on time that differ by less are as good as equal."""
LONG_S = 600.0
GRID = (0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Figures:
    """What all clients of a run got."""

    on_time: float
    """Share of chunks."""
    first_p50_s: float
    first_p90_s: float
    served: float
    """Requests a second."""


@dataclass(frozen=True)
class Pair:
    """One load under one rule."""

    load: float
    policy: str
    real: Figures
    simulated: Figures
    slowness: float
    """How many times as long as in the book calls took in the real run."""

    @property
    def differences(self) -> dict[str, float]:
        """By how much of the real figure each simulated one is off."""
        real, simulated = asdict(self.real), asdict(self.simulated)
        return {name: abs(simulated[name] / value - 1) for name, value in real.items()}


def figures(streams: Sequence[StreamResult]) -> Figures:
    """What it came to."""
    first = sorted(one.first_s for one in streams if one.chunks)
    ok = [one for one in streams if one.status == "ok"]
    seconds = max(one.ended_at for one in ok) - min(one.submitted_at for one in streams)
    at = [first[int(len(first) * part)] for part in (0.5, 0.9)]
    return Figures(share_on_time(streams), *at, len(ok) / seconds)


def figure_errors(pairs: Sequence[Pair]) -> dict[str, float]:
    """By how much each figure is off, on average: single ones swing with whatever stops this machine for a moment."""
    names = pairs[0].differences
    return {name: round(fmean(pair.differences[name] for pair in pairs), 3) for name in names}


def is_same_order(pairs: Iterable[Pair]) -> bool:
    """Whether at each load no rule is better than another for real and worse when simulated."""
    results = list(pairs)
    return not any(
        one.load == other.load
        and one.real.on_time > other.real.on_time + TIE
        and one.simulated.on_time < other.simulated.on_time - TIE
        for one in results
        for other in results
    )


# ---------------------------------------------------------------- Hibari
def cost_key(op: str, arguments: Mapping[str, Any]) -> Hashable | None:
    """What is said, not with which noise; and into which sentences a text falls is found out each time."""
    return arguments["text"] if op == "tts.synthesize" else None


def total_work_s(book: CallTrace, arrivals: Iterable[Arrival]) -> float:
    """How many seconds of an engine requests take."""
    inputs = {str(call[1]): seconds for call, seconds in book.call_seconds.items() if call[1] is not None}
    return sum(
        arrival.request.text.count(sentence) * seconds for arrival in arrivals for sentence, seconds in inputs.items()
    )


def run_real(
    deployed: Mapping[str, PlannedModel], arrivals: Sequence[Arrival], order: SchedulingPolicy | None
) -> tuple[list[StreamResult], float]:
    """What clients get here and now, and how many seconds were computed for them."""
    with InProcessLauncher(deployed, policy=order) as deployment:
        front = FrontendActor(deployment.actor_loop, Peer("front", 0), deployment.conductors)
        deployment.add_frontend(front)
        received = play(front, arrivals)
        ops = front.query_stats(deployment.peers()[1]).result().ops
        return received, sum(walk.busy_s for one in ops if one.op == "synthesize" for walk in one.walks.values())


def run_simulated(
    deployed: Mapping[str, PlannedModel], book: CallTrace, arrivals: Sequence[Arrival], order: SchedulingPolicy | None
) -> list[StreamResult]:
    """What they would get."""
    receipts = simulate(deployed, {NAME: book}, arrivals, order=order)
    return [StreamResult(one.submitted_at, one.chunks, one.ended_at, one.status) for one in receipts]


def with_warm_up(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """All sentences first, then these."""
    return [Arrival(0.0, SpeechRequest(" ".join(SENTENCES)), NAME)] + [
        replace(one, at=one.at + WARM_UP_S) for one in arrivals
    ]


def measure(deployed: Mapping[str, PlannedModel], book: CallTrace, draw: Callable[[random.Random], Any]) -> list[Pair]:
    """Each load under each rule, real and simulated."""
    pairs = list[Pair]()
    for load in LOADS:
        arrivals = with_warm_up(poisson(load / mean_work_s(book, draw), SECONDS, draw, SEED))
        for rule, order in POLICIES.items():
            received, seconds = run_real(deployed, arrivals, order())
            slowness = seconds / total_work_s(book, arrivals)
            would = run_simulated(deployed, scaled_trace(book, slowness), arrivals, order())
            pairs.append(Pair(load, rule, figures(received[1:]), figures(would[1:]), slowness))
    return pairs


def scaled_trace(book: CallTrace, factor: float) -> CallTrace:
    """The same trace with every call longer by this factor."""
    return replace(book, call_seconds={call: factor * seconds for call, seconds in book.call_seconds.items()})


def mean_work_s(book: CallTrace, draw: Callable[[random.Random], Any]) -> float:
    """How many seconds of an engine a request takes on average."""
    arrivals = poisson(1.0, LONG_S, draw, SEED)
    return total_work_s(book, arrivals) / len(arrivals)


def curve(
    deployed: Mapping[str, PlannedModel], book: CallTrace, draw: Callable[[random.Random], Any]
) -> dict[str, Any]:
    """The share of chunks on time by load, under each rule."""
    series = {rule: list[float]() for rule in POLICIES}
    for load in GRID:
        arrivals = poisson(load / mean_work_s(book, draw), LONG_S, draw, SEED)
        for rule, order in POLICIES.items():
            series[rule].append(round(share_on_time(run_simulated(deployed, book, arrivals, order())), 4))
    return {"x": list(GRID), "series": series, "axes": ["load", "chunks on time"]}


def rows(pairs: Iterable[Pair]) -> list[Row]:
    """What is printed."""
    results = list[Row]()
    for pair in pairs:
        for how, one in (("real", pair.real), ("simulated", pair.simulated)):
            name = f"load {pair.load}, {pair.policy}, {how}"
            results += [
                Row(f"{name}: chunks on time", "%", [100 * one.on_time]),
                Row(f"{name}: first chunk p50", "ms", [1000 * one.first_p50_s]),
                Row(f"{name}: first chunk p90", "ms", [1000 * one.first_p90_s]),
                Row(f"{name}: served", "requests/s", [one.served]),
            ]
    return results


def capacity_sim() -> Claim:
    """Play and simulate; how far the figure is off that is off most."""
    model = Hibari()
    deployed = {NAME: PlannedModel(model, plan(model.graphs()))}
    book = record_trace(model, [SpeechRequest(" ".join(SENTENCES))], cost_key)
    pairs = measure(deployed, book, speech)
    print_table(rows(pairs))
    begun = time.perf_counter()
    results = curve(deployed, book, speech)
    speed = LONG_S * len(GRID) * len(POLICIES) / (time.perf_counter() - begun)
    differences, worst = figure_errors(pairs), max(max(pair.differences.values()) for pair in pairs)
    value, is_same = max(differences.values()), is_same_order(pairs)
    more = {
        "same_order": is_same,
        "differences": differences,
        "worst": round(worst, 3),
        "slowness": [round(pair.slowness, 2) for pair in pairs],
        "times_real_time": round(speed),
        "curve": results,
    }
    text = "simulated in virtual time three rules rank as in real runs, and each figure is within 15 % on average"
    return Claim(text, value, MAX_ERROR, is_same and value <= MAX_ERROR, more)
