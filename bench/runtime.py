"""The cost of conductor, workers and wire around the engine, measured beside the engine alone.

Real processes, started as an operator would. A language model decodes for 16 requests at once, in turns with the same
engine in this process; a relay of two workers shows the cost of a hop.

Workload: a decoder of the shape of SmolLM2-135M in bf16 with random weights, 16 requests with prompts of 64 tokens: its
step of tens of ms on two cores is as long as that of a 7B model on an accelerator, so the share of the runtime is
comparable. The relay (bench/models/relay.py) is a toy that computes nothing; its hops carry 8 bytes and 1 MB.
"""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.claims import Claim, Row, paired_ratio, print_table
from mstar.frontend.core import Deliver
from mstar.wire.messages import Submit, Value

MODELS_DIR = Path(__file__).parent / "models"
CONCURRENCY, PROMPT, SKIPPED, TIMED = 16, 64, 6, 30
"""Concurrent requests, prompt tokens, and steps that are timed after the first few."""
ROUNDS = 3
RELAY = '[place]\nleft = "a"\nright = "b"\n'
MEGABYTE = 125_000
"""Whole numbers of eight bytes."""


@contextmanager
def deploy(model: Path, placement: str = "") -> Iterator[Any]:
    """A deployment of one model, and the front_end to it."""
    from mstar.frontend.actor import FrontendActor
    from mstar.launch.local_launcher import LocalLauncher
    from mstar.wire.messages import Peer

    with LocalLauncher({"model": str(model)}, {"model": placement}, standby=False) as local:
        front_end = FrontendActor(local.actor_loop, Peer("front", 0), local.conductors)
        local.add_frontend(front_end)
        yield front_end


# ---------------------------------------------------------------- decoding
def served_step(front_end: Any, prompts: list[list[int]]) -> float:
    """Milliseconds between two tokens when all requests decode at once."""
    times: list[list[float]] = [[] for _ in prompts]
    ended = threading.Semaphore(0)

    def on_event(row: int, event: Any) -> None:  # no thread for each client: they would take the cores from the engine
        if isinstance(event, Deliver):
            times[row].append(time.perf_counter())
        else:
            ended.release()

    for row, prompt in enumerate(prompts):
        submit = Submit(front_end.new_rid(), "model", Value((prompt, SKIPPED + TIMED)))
        front_end.submit(submit, partial(on_event, row))
    for _ in prompts:
        ended.acquire()
    return _each_step(times)


def engine_step(served: Any, prompts: list[list[int]]) -> float:
    """The same in this process, with nothing around the engine."""
    import torch

    caches = [served.request() for _ in prompts]
    tokens = served.step([torch.tensor(prompt) for prompt in prompts], caches)
    times: list[float] = []
    for _ in range(SKIPPED + TIMED):
        times.append(time.perf_counter())
        tokens = served.step(tokens, caches)
        [int(token) for token in tokens]  # a client looks at what it gets
    return _each_step([times])


def _each_step(times: list[list[float]]) -> float:
    return statistics.median((row[-1] - row[SKIPPED - 1]) / (len(row) - SKIPPED) for row in times) * 1000


def decoding() -> list[Row]:
    """A step of the engine, through all processes and alone."""
    from bench.engine import EngineLoop, make_network
    from bench.peers.model import make_prompts

    values: dict[str, list[float]] = {"served": [], "engine": []}
    with ThreadPoolExecutor() as loader:
        loading = loader.submit(lambda: EngineLoop(make_network(), pages=2048))  # while the worker loads, too
        with deploy(MODELS_DIR / "lm.py") as front_end:
            alone = loading.result()
            turns = {"served": partial(served_step, front_end), "engine": partial(engine_step, alone)}
            for round_ in range(ROUNDS + 1):
                prompts = make_prompts(CONCURRENCY, PROMPT, round_)
                for who in sorted(turns, reverse=bool(round_ % 2)):
                    spent = turns[who](prompts)
                    values[who] += [spent] if round_ else []  # the first round warms
    return [Row(f"{who} step, {CONCURRENCY} at once", "ms", results) for who, results in values.items()]


# ---------------------------------------------------------------- hops
def relay_hops() -> list[Row]:
    """What it takes to begin a request, to hand a value to another worker, and to give one to a client."""
    with deploy(MODELS_DIR / "relay.py", RELAY) as front_end:

        def spent(walk: str, size: int, rounds: int) -> float:
            begun = time.perf_counter()
            for _ in front_end.open_stream("model", {"walk": walk, "size": size, "rounds": rounds}):
                pass
            return (time.perf_counter() - begun) * 1000

        for size in (1, MEGABYTE):
            spent("race", size, 50)
        begin, small, large, shown, bare = [], [], [], [], []
        for _ in range(6):
            begin += [spent("show", 1, 1) for _ in range(10)]
            bare += round_trips()
            small.append((spent("race", 1, 250) - spent("race", 1, 50)) / 400 * 1000)
            large.append((spent("race", MEGABYTE, 60) - spent("race", MEGABYTE, 10)) / 100 * 1000)
            shown += delays(front_end)
    return [
        Row("a bare round trip over a unix socket", "us", bare),
        Row("a request of one op, from the client and back", "ms", begin),
        Row("a hop between two workers, small", "us", small),
        Row("a hop between two workers, 1 MB", "us", large),
        Row("a token from its op to the front end", "us", shown),
    ]


def round_trips() -> list[float]:
    """What two processes need to wake each other, with nothing around it: how quick the machine is today."""
    near, far = socket.socketpair()
    child = os.fork()
    if not child:
        while far.recv(256) != b"end":
            far.send(b"x" * 200)
        os._exit(0)
    spent: list[float] = []
    for _ in range(200):
        begun = time.perf_counter()
        near.send(b"x" * 200)
        near.recv(256)
        spent.append((time.perf_counter() - begun) * 1e6)
    near.send(b"end")
    os.waitpid(child, 0)
    near.close()
    far.close()
    return spent


def delays(front_end: Any) -> list[float]:
    """How long emissions were on their way: their worker notes when it made them, on the clock that all share."""
    spent: list[float] = []
    ended = threading.Event()

    def on_event(event: Any) -> None:
        if isinstance(event, Deliver):
            spent.append((time.perf_counter_ns() - int(event.value[0])) / 1000)
        else:
            ended.set()

    front_end.submit(Submit(front_end.new_rid(), "model", Value({"walk": "stamp", "size": 1, "rounds": 20})), on_event)
    ended.wait()
    return spent


def runtime() -> Claim:
    """Throughput relative to the engine alone; latency of a hop, a token and a request."""
    rows = [*relay_hops(), *decoding()]
    print_table(rows)
    results = {row.name: row for row in rows}
    share = paired_ratio(
        results[f"engine step, {CONCURRENCY} at once"].values, results[f"served step, {CONCURRENCY} at once"].values
    )
    more = {
        "bare_round_trip_us": round(results["a bare round trip over a unix socket"].median),
        "request_ms": round(results["a request of one op, from the client and back"].median, 2),
        "hop_us": round(results["a hop between two workers, small"].median),
        "hop_1mb_us": round(results["a hop between two workers, 1 MB"].median),
        "token_us": round(results["a token from its op to the front end"].median),
    }
    is_met = more["request_ms"] <= 1 and more["hop_us"] <= 150 and more["hop_1mb_us"] <= 500 and more["token_us"] <= 200
    claim = (
        "decoding for 16 requests through conductor and worker processes is 0.95 of the engine alone or more; a hop "
        "takes 150 us, with 1 MB 500 us, a token 200 us to the front end, a request 1 ms from end to end, or less"
    )
    return Claim(claim, round(share, 3), 0.95, is_met=share >= 0.95 and is_met, details=more)
