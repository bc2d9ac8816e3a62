"""Three times as many requests as can be served, whether they are answered or not: who comes in is served as before."""

from __future__ import annotations

import asyncio
import random
import time

from bench.claims import Claim, Row, print_table
from bench.web.client import Client, ask, model_file, percentile, serve

WORDS, WAIT_S, BATCH = 8, 0.01, 8
"""A request takes eight steps of 10 ms, and eight requests share a step: a hundred requests a second at best."""
LIVE, QUEUE = 16, 16
TURN_S, TURNS, TIMES = 8.0, 3, 3.0
PATIENCE_S = 1.0
"""Who has not been served whole after so long has not been served."""
TEXT = f"{WORDS} {WAIT_S}"


async def capacity(port: int) -> float:
    """Requests a second when as many clients as there are places ask again and again."""
    until, served = time.perf_counter() + TURN_S / 2, 0

    async def keep_asking() -> None:
        nonlocal served
        while time.perf_counter() < until:
            client = await ask(port, TEXT)
            await client.ended
            served += client.is_whole

    begun = time.perf_counter()
    await asyncio.gather(*(keep_asking() for _ in range(LIVE)))
    return served / (time.perf_counter() - begun)


async def flood(port: int, rate: float, seed: int) -> tuple[float, list[float], list[Client]]:
    """Ask at random times, so many a second: goodput, the seconds of refusals, and everyone who asked."""
    chosen, begun, at, asked = random.Random(seed), time.perf_counter(), 0.0, []
    while at < TURN_S:
        at += chosen.expovariate(rate)
        await asyncio.sleep(begun + at - time.perf_counter())
        asked.append(asyncio.create_task(ask(port, TEXT)))
    clients = [await task for task in asked]
    for client in clients:
        await client.ended
    good = [one for one in clients if one.is_whole and one.closed - one.begun <= PATIENCE_S]
    refused = [one.closed - one.begun for one in clients if one.status in (429, 503)]
    return len(good) / TURN_S, refused, clients


async def _measure(port: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"capacity": [], "goodput": [], "refusal": [], "other": []}
    await capacity(port)
    for turn in range(TURNS):
        found["capacity"].append(await capacity(port))
        goodput, refused, clients = await flood(port, TIMES * found["capacity"][-1], turn)
        found["goodput"].append(goodput)
        found["refusal"] += [1000 * one for one in refused]
        found["other"].append(float(sum(one.status not in (200, 429, 503) for one in clients)))
    return found


def overload() -> Claim:
    """The headline."""
    flags = ("--max-live", str(LIVE), "--queue-bound", str(QUEUE), "--max-batch", str(BATCH))
    with serve(model_file("pulse"), *flags) as (port, _):
        found = asyncio.run(_measure(port))
    print_table(
        [
            Row("served when nobody is turned away", "requests/s", found["capacity"]),
            Row(f"served whole in {PATIENCE_S:.0f} s at {TIMES:.0f} times that", "requests/s", found["goodput"]),
            Row("a refusal", "ms", found["refusal"]),
        ]
    )
    share = round(sum(found["goodput"]) / sum(found["capacity"]), 3)
    late = round(percentile(found["refusal"], 0.99), 1)
    more = {
        "refusal_p99_ms": late,
        "refusal_p50_ms": round(percentile(found["refusal"], 0.5), 1),
        "refused": len(found["refusal"]),
    }
    more["other_answers"] = int(sum(found["other"]))
    claim = (
        "asked for three times what it can serve, a server serves 0.95 of that or more, and refuses the rest in 20 ms "
        "(p99)"
    )
    return Claim(claim, share, 0.95, holds=share >= 0.95 and late <= 20 and not more["other_answers"], more=more)
