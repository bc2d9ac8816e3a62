"""Twenty thousand idle streams in one front end: the memory of each, and the delay of the active streams beside them.

Workload: a toy model whose op sleeps 100 ms and computes nothing (bench/models/timestamps.py): 50 active streams with
ten words/s each, the reading speed of a chat, and 20,000 that wait in the queue with their connections open, or as many
as the limit of open files allows.
"""

from __future__ import annotations

import asyncio
import gc
import resource
from pathlib import Path

from bench.claims import Claim, Row, print_table
from bench.http.client import ask, figure, model_file, percentile, raise_file_limit, serve

MAX_IDLE, ACTIVE, WORDS, PERIOD_S = 20_000, 50, 200, 0.1
MAX_KB, MAX_LATE_MS = 30, 30
ACCEPT_TIMEOUT_S = 240
SHARE = 0.92
"""Share of the open files that idle streams take: the server needs others."""
CONNECT_BATCH = 100
"""How many clients connect at the same time."""


def rss_bytes(pid: int) -> int:
    """How many bytes of memory a process has in use."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def cpu_seconds(pid: int) -> float:
    """How many seconds of processor time it has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def _measure(port: int, pid: int, idle_count: int) -> dict[str, list[float]]:
    results: dict[str, list[float]] = {"idle cost": [], "delivery": [], "delivery without them": []}
    text = f"{WORDS // 4} {PERIOD_S}"
    for client in [await ask(port, text) for _ in range(ACTIVE)]:  # the first ones make what is made once
        await client.ended
        results["delivery without them"] += client.delays
    # Active streams occupy every slot; the others wait with their streams open.
    speakers = [await ask(port, f"{WORDS * 100} {PERIOD_S}") for _ in range(ACTIVE)]
    await asyncio.sleep(1)
    before, idle = rss_bytes(pid), []
    for _ in range(idle_count // CONNECT_BATCH):
        idle += await asyncio.gather(*(ask(port, "1 0") for _ in range(CONNECT_BATCH)))
    gc.collect()
    gc.freeze()  # the clients are not to be looked through while they wait
    async with asyncio.timeout(ACCEPT_TIMEOUT_S):
        while await asyncio.to_thread(figure, port, "mstar_responses_in_progress") < idle_count + ACTIVE:
            await asyncio.sleep(1)  # the kernel has accepted all connections before the server has
    await asyncio.sleep(2)
    results["idle cost"].append((rss_bytes(pid) - before) / idle_count / 1000)
    marks, used = [len(one.delays) for one in speakers], cpu_seconds(pid)
    await asyncio.sleep(WORDS * PERIOD_S)
    results["processor"] = [100 * (cpu_seconds(pid) - used) / (WORDS * PERIOD_S)]
    for one, mark in zip(speakers, marks, strict=True):
        results["delivery"] += one.delays[mark:]
    results["still there"] = [float(sum(not one.ended.done() for one in idle))]
    for one in (*speakers, *idle):
        one.transport.abort()
    return results


def idle_streams() -> Claim:
    """The headline."""
    idle_count = min(MAX_IDLE, int(SHARE * raise_file_limit())) // CONNECT_BATCH * CONNECT_BATCH
    flags = ("--max-running-requests", str(ACTIVE), "--max-queued-requests", str(2 * MAX_IDLE))
    flags += ("--max-connections", str(2 * MAX_IDLE), "--rate-limit-concurrency", str(2 * MAX_IDLE))
    with serve(model_file("timestamps"), *flags) as (port, pid):
        results = asyncio.run(_measure(port, pid, idle_count))
    delivery = [1000 * value for value in results["delivery"]]
    print_table(
        [
            Row("an idle stream in the front end", "kB", results["idle cost"]),
            Row(
                f"a word to its client, {ACTIVE} speak", "ms", [1000 * one for one in results["delivery without them"]]
            ),
            Row(f"the same beside {idle_count} idle streams", "ms", delivery),
            Row("the front end's share of a core", "%", results["processor"]),
        ]
    )
    cost, late = round(results["idle cost"][0], 1), round(percentile(delivery, 0.99), 1)
    more = {
        "still_there": int(results["still there"][0]),
        "kb_each": cost,
        "p99_ms": late,
        "p50_ms": round(percentile(delivery, 0.5), 2),
    }
    claim = (
        f"{idle_count} idle streams in one front end take {MAX_KB} kB each or less, and beside them a word is there in "
        f"{MAX_LATE_MS} ms (p99)"
    )
    is_met = cost <= MAX_KB and late <= MAX_LATE_MS and more["still_there"] == idle_count
    return Claim(claim, late, MAX_LATE_MS, is_met=is_met, details=more)
