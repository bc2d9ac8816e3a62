"""Rehearsed and real: the same traffic under three rules, in virtual time and on this machine, and how far they differ.

What is compared is who gets what when, not how busy neighbours keep the machine: a rehearsal takes from the figures of
the real run's worker how much longer than in the book all calls together took. That factor is told too; it is 1 where
nothing else runs. Then ten minutes of traffic are rehearsed over a range of loads: how much comes on time, by rule.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from bench.claims import Claim, Row, print_table
from bench.deadlines.orders import FirstCome, Voxserve
from bench.deadlines.traffic import SENTENCES, Arrival, Heard, play, poisson, share_on_time, speech
from mstar.asks import Speech
from mstar.launch.together import Together
from mstar.models.voice.speaker import Hibari
from mstar.plan.compile import plan
from mstar.plan.deployment import Deployed
from mstar.server.front import FrontEnd
from mstar.sim.book import Book, record, rehearse
from mstar.wire.messages import Peer
from mstar.worker.order import Order

NAME = "model"
RULES: dict[str, Callable[[], Order | None]] = {
    "by slack": lambda: None,
    "first come": FirstCome,
    "VoxServe's": Voxserve,
}
LOADS = (0.7, 1.0)
"""Of what one engine can do at most, by what was measured."""
SECONDS, SEED = 7.0, 8
WARM_S = 1.5
"""Before it a worker says every sentence once, so that it knows what they cost."""
BAR = 0.15
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
    rule: str
    real: Figures
    rehearsed: Figures
    slowness: float
    """How many times as long as in the book calls took in the real run."""

    @property
    def differences(self) -> dict[str, float]:
        """By how much of the real figure each rehearsed one is off."""
        real, rehearsed = asdict(self.real), asdict(self.rehearsed)
        return {name: abs(rehearsed[name] / value - 1) for name, value in real.items()}


def figures(heard: Sequence[Heard]) -> Figures:
    """What it came to."""
    first = sorted(one.first_s for one in heard if one.chunks)
    ok = [one for one in heard if one.status == "ok"]
    seconds = max(one.ended for one in ok) - min(one.asked for one in heard)
    at = [first[int(len(first) * part)] for part in (0.5, 0.9)]
    return Figures(share_on_time(heard), *at, len(ok) / seconds)


def apart(pairs: Sequence[Pair]) -> dict[str, float]:
    """By how much each figure is off, on average: single ones swing with whatever stops this machine for a moment."""
    names = pairs[0].differences
    return {name: round(fmean(pair.differences[name] for pair in pairs), 3) for name in names}


def is_same_order(pairs: Iterable[Pair]) -> bool:
    """Whether at each load no rule is better than another for real and worse when rehearsed."""
    found = list(pairs)
    return not any(
        one.load == other.load
        and one.real.on_time > other.real.on_time + TIE
        and one.rehearsed.on_time < other.rehearsed.on_time - TIE
        for one in found
        for other in found
    )


# ---------------------------------------------------------------- Hibari
def matters(op: str, arguments: Mapping[str, Any]) -> Hashable | None:
    """What is said, not with which noise; and into which sentences a text falls is found out each time."""
    return arguments["text"] if op == "speaker.say" else None


def work(book: Book, arrivals: Iterable[Arrival]) -> float:
    """How many seconds of an engine requests take."""
    said = {str(call[1]): seconds for call, seconds in book.seconds.items() if call[1] is not None}
    return sum(arrival.ask.text.count(sentence) * seconds for arrival in arrivals for sentence, seconds in said.items())


def real(
    deployed: Mapping[str, Deployed], arrivals: Sequence[Arrival], order: Order | None
) -> tuple[list[Heard], float]:
    """What clients get here and now, and how many seconds were computed for them."""
    with Together(deployed, order=order) as deployment:
        front = FrontEnd(deployment.node, Peer("front", 0), deployment.conductors)
        deployment.add(front)
        heard = play(front, arrivals)
        ops = front.take_figures(deployment.peers()[1]).result().ops
        return heard, sum(walk.seconds for one in ops if one.op == "say" for walk in one.walks.values())


def rehearsed(
    deployed: Mapping[str, Deployed], book: Book, arrivals: Sequence[Arrival], order: Order | None
) -> list[Heard]:
    """What they would get."""
    receipts = rehearse(deployed, {NAME: book}, arrivals, order=order)
    return [Heard(one.asked, one.chunks, one.ended, one.status) for one in receipts]


def warmed(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """All sentences first, then these."""
    return [Arrival(0.0, Speech(" ".join(SENTENCES)), NAME)] + [replace(one, at=one.at + WARM_S) for one in arrivals]


def measure(deployed: Mapping[str, Deployed], book: Book, draw: Callable[[random.Random], Any]) -> list[Pair]:
    """Each load under each rule, for real and rehearsed."""
    pairs = list[Pair]()
    for load in LOADS:
        arrivals = warmed(poisson(load / each(book, draw), SECONDS, draw, SEED))
        for rule, order in RULES.items():
            heard, seconds = real(deployed, arrivals, order())
            slowness = seconds / work(book, arrivals)
            slowed = replace(book, seconds={call: slowness * usual for call, usual in book.seconds.items()})
            would = rehearsed(deployed, slowed, arrivals, order())
            pairs.append(Pair(load, rule, figures(heard[1:]), figures(would[1:]), slowness))
    return pairs


def each(book: Book, draw: Callable[[random.Random], Any]) -> float:
    """How many seconds of an engine a request takes on average."""
    arrivals = poisson(1.0, LONG_S, draw, SEED)
    return work(book, arrivals) / len(arrivals)


def curve(deployed: Mapping[str, Deployed], book: Book, draw: Callable[[random.Random], Any]) -> dict[str, Any]:
    """The share of chunks on time by load, under each rule."""
    series = {rule: list[float]() for rule in RULES}
    for load in GRID:
        arrivals = poisson(load / each(book, draw), LONG_S, draw, SEED)
        for rule, order in RULES.items():
            series[rule].append(round(share_on_time(rehearsed(deployed, book, arrivals, order())), 4))
    return {"x": list(GRID), "series": series, "axes": ["load", "chunks on time"]}


def rows(pairs: Iterable[Pair]) -> list[Row]:
    """What is printed."""
    found = list[Row]()
    for pair in pairs:
        for how, one in (("real", pair.real), ("rehearsed", pair.rehearsed)):
            name = f"load {pair.load}, {pair.rule}, {how}"
            found += [
                Row(f"{name}: chunks on time", "%", [100 * one.on_time]),
                Row(f"{name}: first chunk p50", "ms", [1000 * one.first_p50_s]),
                Row(f"{name}: first chunk p90", "ms", [1000 * one.first_p90_s]),
                Row(f"{name}: served", "requests/s", [one.served]),
            ]
    return found


def simulated() -> Claim:
    """Play and rehearse; how far the figure is off that is off most."""
    model = Hibari()
    deployed = {NAME: Deployed(model, plan(model.graphs()))}
    book = record(model, [Speech(" ".join(SENTENCES))], matters)
    pairs = measure(deployed, book, speech)
    print_table(rows(pairs))
    begun = time.perf_counter()
    found = curve(deployed, book, speech)
    speed = LONG_S * len(GRID) * len(RULES) / (time.perf_counter() - begun)
    differences, worst = apart(pairs), max(max(pair.differences.values()) for pair in pairs)
    value, is_same = max(differences.values()), is_same_order(pairs)
    more = {
        "same_order": is_same,
        "differences": differences,
        "worst": round(worst, 3),
        "slowness": [round(pair.slowness, 2) for pair in pairs],
        "times_real_time": round(speed),
        "curve": found,
    }
    text = (
        "rehearsed in virtual time three rules are in the order of real runs, and each figure is within 15 % on average"
    )
    return Claim(text, value, BAR, is_same and value <= BAR, more)
