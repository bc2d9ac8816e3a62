"""SmolLM2 with its real weights over HTTP, in turns with the engine alone: the cost of everything around the engine.

Workload: SmolLM2-135M at its published size, 16 streams of 46 tokens. A decode step takes tens of ms on two cores, so
that the front end handles several hundred tokens/s; a larger network has longer steps and a smaller overhead. Delivery
is measured with a toy model whose op sleeps 30 ms (bench/models/timestamps.py).
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from bench.claims import Claim, Row, paired_ratio, print_table
from bench.engine import EngineLoop
from bench.http.client import Client, ask, model_file, percentile, serve

CONCURRENCY, SKIPPED, TIMED, ROUNDS = 16, 6, 40, 5
"""Concurrent streams, and tokens that are timed after the first few."""
SUBJECTS = ("a lighthouse", "two foxes", "the sea", "an old clock", "a train", "a baker", "winter", "a violin")
QUESTIONS = [f"Write a long story about {one}{how}." for one in SUBJECTS for how in ("", " and a child")]


class EngineOnly(EngineLoop):
    """The model's own component in an engine of this process, with nothing around it."""

    def __init__(self) -> None:
        from mstar.engine.engine import Engine
        from mstar.models.smollm2.smollm2 import LanguageModel
        from mstar.requests import ChatRequest, Message

        self.lm: Any = LanguageModel()
        self.lm.name = "lm"
        self.engine = Engine(max_batched_tokens=4096)
        self.op = self.lm.ops()["next_token"]
        self.lm.prepare()
        self._prompts = [self.lm.prompt(ChatRequest((Message("user", (one,)),)))[0] for one in QUESTIONS]

    def rate(self) -> float:
        """Tokens a second for all at once."""
        caches = [self.request() for _ in QUESTIONS]
        tokens = self.step(self._prompts, caches)
        begun = 0.0
        for at in range(SKIPPED + TIMED - 1):
            if at == SKIPPED - 1:
                begun = time.perf_counter()
            tokens = self.step(tokens, caches)
            [int(token) for token in tokens]  # a client looks at what it gets
        return CONCURRENCY * TIMED / (time.perf_counter() - begun)


async def over_http(port: int) -> float:
    """The same by HTTP: each token is an event of a stream of its own."""
    clients = await asyncio.gather(*(ask(port, one, max_tokens=SKIPPED + TIMED) for one in QUESTIONS))
    for client in clients:
        await client.ended
        if not client.is_whole or len(client.arrived) < TIMED:
            raise RuntimeError(f"a stream ended early: {client.status}, {len(client.arrived)} events")
    return CONCURRENCY * statistics.median(map(_rate, clients))


def _rate(client: Client) -> float:
    """Events a second, without the first ones and those of the end."""
    times = client.arrived[-TIMED:]
    return (len(times) - 1) / (times[-1] - times[0])


async def _stamped(port: int) -> list[float]:
    clients = await asyncio.gather(*(ask(port, "60 0.03") for _ in range(CONCURRENCY)))
    for client in clients:
        await client.ended
    return [1000 * delay for client in clients for delay in client.delays]


def http_overhead() -> Claim:
    """Throughput relative to the engine alone, and the time from a worker's emission to the client."""
    rates: dict[str, list[float]] = {"alone": [], "http": []}
    with serve("smollm2") as (port, _):
        alone = EngineOnly()
        for round_ in range(ROUNDS + 1):
            turns = {"alone": alone.rate, "http": lambda: asyncio.run(over_http(port))}
            for who in sorted(turns, reverse=bool(round_ % 2)):
                rate = turns[who]()
                rates[who] += [rate] if round_ else []  # the first round warms
    with serve(model_file("timestamps")) as (port, _):
        delays = asyncio.run(_stamped(port)) and asyncio.run(_stamped(port))
    print_table(
        [
            Row(f"the engine alone, {CONCURRENCY} at once", "tokens/s", rates["alone"]),
            Row(f"over HTTP, {CONCURRENCY} streams", "tokens/s", rates["http"]),
            Row("a word from its op to its client", "ms", delays),
        ]
    )
    value, late = round(paired_ratio(rates["http"], rates["alone"]), 3), round(percentile(delays, 0.5), 2)
    claim = (
        "SmolLM2 over HTTP with 16 streams has at least 0.9 of the throughput of the engine alone; a word of a toy "
        "model is at its client within 2 ms (p50)"
    )
    return Claim(claim, value, 0.9, is_met=value >= 0.9 and late <= 2, details={"delivery_p50_ms": late})
