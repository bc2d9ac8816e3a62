"""What a token costs with 1, 2 and 4 front-end processes: CPU time and context switches, by role.

`python -m bench.cost.frontends [--counts 1 2 4] [--rounds 3] [--streams 64] [--for-each]`. With one front end the
launcher is in its process; with more it is a process of its own, which serves no client.

Workload: 64 streams of 20 tokens/s of a toy model that computes nothing (bench/models/timestamps.py), as in the ledger
of `python -m bench cost`; with `--for-each` that many for each front end. The kernel spreads the connections over the
front ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.cost.usage import Roles, Usage, read_usage, scale
from bench.http.client import ask, model_file, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

WORDS, PERIOD_S = 50, 0.05
FRONT_END, LAUNCHER = "front end", "launcher"


def read_processes(pid: int, count: int) -> Roles:
    """The counters of a server by role; those of several front ends are added."""
    used = {FRONT_END if count == 1 else LAUNCHER: read_usage(pid)}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, task.joinpath("children").read_text().split()):
            name = Path(f"/proc/{child}/comm").read_text().strip()
            role = FRONT_END if name.startswith("front-") else name.partition(" ")[0]
            used[role] = used.get(role, Usage()) + read_usage(child)
    return used


@contextmanager
def spending(pid: int, count: int) -> Iterator[Roles]:
    """What a server uses while the block runs, known after it."""
    spent, before = Roles(), read_processes(pid, count)
    yield spent
    spent |= {role: used - before.get(role, Usage()) for role, used in read_processes(pid, count).items()}


async def measure(port: int, pid: int, count: int, streams: int) -> Roles:
    """The cost of a token while all streams speak."""
    clients = [await ask(port, f"{WORDS} {PERIOD_S}") for _ in range(streams)]
    while not all(client.deltas for client in clients):
        await asyncio.sleep(0.01)
    before = sum(client.deltas for client in clients)
    with spending(pid, count) as spent:
        while not any(client.ended.done() or client.deltas >= WORDS - 2 for client in clients):
            await asyncio.sleep(0.02)
        tokens = sum(client.deltas for client in clients) - before
    for client in clients:
        await client.ended
    return scale(spent, 1 / tokens)


def main() -> None:
    """Print a line of JSON for each number of front ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--for-each", action="store_true", help="Number of streams is for each front end.")
    options = parser.parse_args()
    for count in options.counts:
        streams = options.streams * (count if options.for_each else 1)
        with serve(model_file("timestamps"), "--frontends", str(count), "--log-level", "warning") as (port, pid):
            asyncio.run(measure(port, pid, count, streams))  # the first streams make what is made once
            rounds = [asyncio.run(measure(port, pid, count, streams)) for _ in range(options.rounds)]
        roles = {role: [round_used[role] for round_used in rounds] for role in rounds[0]}
        figures = {
            role: {
                "cpu_us_per_token": [round(one.cpu_us, 2) for one in used],
                "median": round(median(one.cpu_us for one in used), 2),
                "switches_per_token": round(median(one.switches for one in used), 3),
            }
            for role, used in roles.items()
        }
        total = sum(one["median"] for one in figures.values())
        print(
            json.dumps({"frontends": count, "streams": streams, "total_cpu_us_per_token": round(total, 2)} | figures),
            flush=True,
        )


if __name__ == "__main__":
    main()
