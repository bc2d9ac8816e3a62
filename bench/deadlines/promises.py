"""More speech than can be said, with a promise to everybody who is let in: how much is kept, and who is turned away.

Work is counted in seconds of an engine that the sentences of a request take, by the book; what was not wholly on time
counts nothing. The clients are in the process that serves, so a refusal here is what conductor and front end take for
it; what HTTP adds is measured by `overload`.
"""

from __future__ import annotations

import time
from dataclasses import replace

from bench.claims import Claim, Row, print_table
from bench.deadlines.simulated import work
from bench.deadlines.speech import Stage
from bench.deadlines.traffic import FIRST_S, Arrival, Heard, play, poisson, share_on_time, speech
from bench.web.client import percentile
from mstar.server.front import FrontEnd
from mstar.wire.messages import Peer
from mstar.wire.pace import Pace

TIMES = (1.0, 2.0, 3.0, 5.0)
"""How much of what one engine can say is asked for; the first shows what is served when hardly anybody is refused."""
TURN_S = 12.0
BAR = 0.95
REFUSAL_MS = 20.0
CLOSE = 0.9
"""This share of forecasts has to be close: then 90 of 100 are wrong by a quarter at most."""


def promised(stage: Stage, times: float, seed: int = 3) -> list[Arrival]:
    """Requests that want their first sound soon."""
    pace = Pace(first_s=FIRST_S)
    return [replace(one, pace=pace) for one in poisson(times / stage.each, TURN_S, speech, seed)]


def kept(stage: Stage, front: FrontEnd, arrivals: list[Arrival]) -> tuple[float, list[Heard], list[Heard]]:
    """Work a second for those who got all in time, who was served, and who was refused."""
    begun = time.monotonic()
    heard = play(front, arrivals)
    served = [(arrival, one) for arrival, one in zip(arrivals, heard, strict=True) if one.status == "ok"]
    seconds = max(one.ended for _, one in served) - begun
    good = [arrival for arrival, one in served if all(one.on_time())]
    return work(stage.book, good) / seconds, [one for _, one in served], [one for one in heard if one.status == "429"]


def promises() -> Claim:
    """What is kept at each load, as a share of what is kept when hardly anybody is refused."""
    stage, rows, goodput = Stage(), list[Row](), dict[float, float]()
    refusals: list[float] = []
    with stage.serving(None) as front:
        for times in TIMES:
            goodput[times], served, refused = kept(stage, front, promised(stage, times))
            refusals += [1000 * (one.ended - one.asked) for one in refused if one.ended - one.asked < FIRST_S / 2]
            rows += [
                Row(f"{times:.0f} times: work for those who got all in time", "s/s", [goodput[times]]),
                Row(f"{times:.0f} times: chunks on time", "%", [100 * share_on_time(served)]),
                Row(f"{times:.0f} times: served", "", [len(served)]),
                Row(f"{times:.0f} times: refused", "", [len(refused)]),
            ]
        (count,) = front.take_figures(Peer("local", 0)).result().kinds
    rows.append(Row("a refusal", "ms", refusals or [0.0]))
    rows.append(Row("forecasts that were close", "%", [100 * count.close / max(1, count.forecasts)]))
    print_table(rows)
    share = round(min(goodput[times] for times in TIMES[1:]) / goodput[TIMES[0]], 3)
    late, close = round(percentile(refusals or [0.0], 0.99), 1), round(count.close / max(1, count.forecasts), 3)
    text = (
        f"asked for up to {TIMES[-1]:.0f} times what one engine can say, a server keeps its promises to those it lets "
        f"in: {BAR} or more of what it serves when nobody is refused, refusals within {REFUSAL_MS:.0f} ms (p99), and "
        "nine of ten forecasts of the first sound wrong by a quarter at most"
    )
    holds = share >= BAR and late <= REFUSAL_MS and close >= CLOSE
    more = {
        "refusal_p99_ms": late,
        "close_forecasts": close,
        "goodput": {str(k): round(v, 3) for k, v in goodput.items()},
    }
    return Claim(text, share, BAR, holds, more)
