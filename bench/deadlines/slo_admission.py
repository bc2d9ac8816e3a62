"""More speech than can be said, with a promise to everybody who is let in: how much is kept, and who is turned away.

Work is counted in seconds of an engine that the sentences of a request take, by the book; what was not wholly on time
counts nothing. The clients are in the process that serves, so a refusal here is what conductor and front end take for
it; what HTTP adds is measured by `overload`.
"""

from __future__ import annotations

import time
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
"""How much of what one engine can say is asked for; the first shows what is served when hardly anybody is refused."""
ROUND_S = 12.0
TARGET = 0.95
MAX_REJECT_MS = 20.0
PREDICTION_TARGET = 0.9
"""This share of forecasts has to be close: then 90 of 100 are wrong by a quarter at most."""


def slo_arrivals(stage: SpeechWorkload, times: float, seed: int = 3) -> list[Arrival]:
    """Requests that want their first sound soon."""
    pace = Slo(ttft_s=TTFT_S)
    return [replace(one, pace=pace) for one in poisson(times / stage.each, ROUND_S, speech, seed)]


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


def slo_admission() -> Claim:
    """What is kept at each load, as a share of what is kept when hardly anybody is refused."""
    stage, rows, goodput = SpeechWorkload(), list[Row](), dict[float, float]()
    refusals: list[float] = []
    with stage.serve(None) as front:
        for times in LOAD_FACTORS:
            goodput[times], served, refused = measure_goodput(stage, front, slo_arrivals(stage, times))
            refusals += [
                1000 * (one.ended_at - one.submitted_at)
                for one in refused
                if one.ended_at - one.submitted_at < TTFT_S / 2
            ]
            rows += [
                Row(f"{times:.0f} times: goodput", "s/s", [goodput[times]]),
                Row(f"{times:.0f} times: chunks on time", "%", [100 * share_on_time(served)]),
                Row(f"{times:.0f} times: served", "", [len(served)]),
                Row(f"{times:.0f} times: refused", "", [len(refused)]),
            ]
        (count,) = front.query_stats(Peer("local", 0)).result().deadlines
    rows.append(Row("a refusal", "ms", refusals or [0.0]))
    rows.append(Row("forecasts that were close", "%", [100 * count.within_25pct / max(1, count.predictions)]))
    print_table(rows)
    share = round(min(goodput[times] for times in LOAD_FACTORS[1:]) / goodput[LOAD_FACTORS[0]], 3)
    late, close = (
        round(percentile(refusals or [0.0], 0.99), 1),
        round(count.within_25pct / max(1, count.predictions), 3),
    )
    text = (
        f"at up to {LOAD_FACTORS[-1]:.0f} times the capacity, goodput is at least {TARGET} of a server "
        f"that rejects none, rejections take at most {MAX_REJECT_MS:.0f} ms (p99), and 90 % of TTFT predictions are "
        "within 25 %"
    )
    holds = share >= TARGET and late <= MAX_REJECT_MS and close >= PREDICTION_TARGET
    more = {
        "refusal_p99_ms": late,
        "close_forecasts": close,
        "goodput": {str(k): round(v, 3) for k, v in goodput.items()},
    }
    return Claim(text, share, TARGET, holds, more)
