"""Speech beyond the capacity of one engine, with an SLO for each admitted request: goodput and rejections.

Goodput is engine seconds of requests whose chunks were all on time, by the costs in the call trace. The clients are in
the serving process: a rejection here is the latency of conductor and front end, for every rejected request, including
those that were rejected after a time in the queue. `overload` measures rejections over HTTP.

Workload: Hibari with its published weights; answers of 1 to 3 sentences and, for a quarter of the requests, readings of
12 to 30 sentences, which stand for a voice assistant that also reads articles. Poisson arrivals for 12 s at 1, 2, 3 and
5 times the capacity of one engine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from bench.claims import Claim, Row, print_table
from bench.deadlines.capacity_sim import total_work_s
from bench.deadlines.speech import SpeechWorkload
from bench.deadlines.traffic import TTFT_S, Arrival, StreamResult, play, poisson, share_on_time, speech
from bench.http.client import percentile
from mstar.frontend.actor import FrontendActor
from mstar.wire.messages import Peer
from mstar.wire.slo import Slo

LOAD_FACTORS = (1.0, 2.0, 3.0, 5.0)
"""Offered load relative to the capacity of one engine. The first is the baseline of the goodput."""
ROUND_S = 12.0
TARGET = 0.95
MAX_REJECT_MS = 20.0
PREDICTION_TARGET = 0.9
"""Minimum share of TTFT predictions within 25 % of the measured value."""


def slo_arrivals(stage: SpeechWorkload, times: float, seed: int = 3) -> list[Arrival]:
    """Requests with an SLO for their first chunk."""
    slo = Slo(ttft_s=TTFT_S)
    return [replace(one, slo=slo) for one in poisson(times / stage.each, ROUND_S, speech, seed)]


def measure_goodput(
    stage: SpeechWorkload, front: FrontendActor, arrivals: list[Arrival]
) -> tuple[float, list[StreamResult], list[StreamResult]]:
    """Goodput of requests that met their SLO, served requests, rejected requests."""
    begun = time.monotonic()
    received = play(front, arrivals)
    served = [(arrival, one) for arrival, one in zip(arrivals, received, strict=True) if one.status == "ok"]
    seconds = max(one.ended_at for _, one in served) - begun
    good = [arrival for arrival, one in served if all(one.on_time())]
    return (
        total_work_s(stage.trace, good) / seconds,
        [one for _, one in served],
        [one for one in received if one.status == "429"],
    )


def rejection_figures(rejected: Sequence[StreamResult]) -> dict[str, float]:
    """Latency of all rejections, and how many of them waited in the queue first."""
    spent_ms = [1000 * (one.ended_at - one.submitted_at) for one in rejected] or [0.0]
    return {
        "rejection_p50_ms": round(percentile(spent_ms, 0.5), 1),
        "rejection_p99_ms": round(percentile(spent_ms, 0.99), 1),
        "rejections": len(rejected),
        "rejections_after_250_ms": sum(ms >= 250 for ms in spent_ms),
    }


def slo_admission() -> Claim:
    """Goodput above the capacity relative to goodput at the capacity, and every rejection."""
    stage, rows, goodput = SpeechWorkload(), list[Row](), dict[float, float]()
    rejected = list[StreamResult]()
    with stage.serve(None) as front:
        for times in LOAD_FACTORS:
            arrivals = slo_arrivals(stage, times)
            goodput[times], served, turned_away = measure_goodput(stage, front, arrivals)
            rejected += turned_away
            rows += [
                Row(f"{times:.0f} times: goodput", "s/s", [goodput[times]]),
                Row(f"{times:.0f} times: chunks on time", "%", [100 * share_on_time(served)]),
                Row(f"{times:.0f} times: served", "", [len(served)]),
                Row(f"{times:.0f} times: rejected", "", [len(turned_away)]),
                Row(f"{times:.0f} times: failed", "", [len(arrivals) - len(served) - len(turned_away)]),
            ]
        (count,) = front.query_stats(Peer("local", 0)).result().deadlines
    close = round(count.within_25pct / max(1, count.predictions), 3)
    rows += [
        Row("rejection, all", "ms", [1000 * (one.ended_at - one.submitted_at) for one in rejected] or [0.0]),
        Row("predictions within 25 %", "%", [100 * close]),
    ]
    print_table(rows)
    share = round(min(goodput[times] for times in LOAD_FACTORS[1:]) / goodput[LOAD_FACTORS[0]], 3)
    rejections = rejection_figures(rejected)
    text = (
        f"at 2 to {LOAD_FACTORS[-1]:.0f} times the capacity, goodput is at least {TARGET} of the goodput at the "
        f"capacity, all rejections take at most {MAX_REJECT_MS:.0f} ms (p99), and {PREDICTION_TARGET:.0%} of TTFT "
        "predictions are within 25 %"
    )
    holds = share >= TARGET and rejections["rejection_p99_ms"] <= MAX_REJECT_MS and close >= PREDICTION_TARGET
    more = {
        **rejections,
        "predictions_within_25_percent": close,
        "goodput": {str(k): round(v, 3) for k, v in goodput.items()},
    }
    return Claim(text, share, TARGET, holds, more)
