"""Does a stream cost more in a large deployment? The cores of a deployment in virtual time, up to a million streams.

    python -m bench scale [--streams 1000000 --workers 1000 --shards 8 --seconds 60]

A deployment of each size, from 1,000 streams by powers of ten, has as many streams per worker; its workers are divided
among conductors, as models are (decision 0030), and each conductor has a front end. Shards exchange no message, so each
is simulated in a process of its own, two at a time. The last row is the largest deployment again, while 1 % of its
workers die one after another.

Load: voice calls. Each stream gets 8 chunks of 2 s as the answer to an input, every 48 s on average, and after four
inputs on average the call ends and the next one begins.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil

from bench.claims import Claim
from bench.repository import ROOT
from bench.scale.shard import CHUNK, CORES, PERIODIC, REQUEST, TURN, ShardCost, ShardLoad
from mstar.errors import MstarError

SMALLEST = 1_000
"""Streams of the smallest deployment."""
MIN_STREAMS = 6_000
"""Streams for which a deployment is measured: small ones are repeated with other seeds."""
JOBS = 2
DYING_SHARE = 0.01
TARGET = 1.3
"""Maximum cost of a stream in the largest deployment, relative to the smallest."""
MAX_WALL_S = 900.0


@dataclass(frozen=True)
class Deployment:
    """A size of the deployment."""

    streams: int
    workers: int
    shards: int
    seconds: float
    dying_workers: int = 0

    def loads(self) -> Iterator[ShardLoad]:
        """The shards, of similar sizes."""
        for number in range(self.shards):
            streams, workers, dying = (
                (number + 1) * total // self.shards - number * total // self.shards
                for total in (self.streams, self.workers, self.dying_workers)
            )
            yield ShardLoad(streams, workers, self.seconds, dying)


@dataclass(frozen=True)
class Measured:
    """What a deployment took."""

    deployment: Deployment
    cost: ShardCost
    repeats: int
    wall_s: float

    @property
    def us_per_stream(self) -> float:
        """CPU time of a stream in the measured time, in microseconds."""
        return 1e6 * self.cost.cpu_s / self.repeats / self.deployment.streams

    def row(self, smallest: Measured) -> str:
        """A line of the table."""
        size, cost = self.deployment, self.cost
        streams = self.repeats * size.streams
        return (
            f"{size.streams:>9,} {size.workers:>7,} {size.shards:>6} {size.dying_workers:>5} "
            f"{self.us_per_stream:>10.0f} {self.us_per_stream / smallest.us_per_stream:>8.2f} "
            f"{cost.bytes / streams / 1024:>8.1f} "
            f"{cost.events / cost.cpu_s:>10,.0f} {cost.events / self.wall_s:>10,.0f} {self.wall_s:>6.0f}"
        )


HEADER = (
    f"{'streams':>9} {'workers':>7} {'shards':>6} {'dying':>5} {'us/stream':>10} {'relative':>8} {'kB/strm':>8} "
    f"{'ev/CPU s':>10} {'ev/s':>10} {'wall s':>6}"
)


def scale(streams: int = 10_000, workers: int = 10, shards: int = 2, seconds: float = 60.0) -> Claim:
    """Measure deployments up to this size, and the largest again while workers die."""
    began = time.monotonic()
    print(f"{seconds:.0f} s of virtual time; us/stream: CPU time of all cores in this time\n{HEADER}", flush=True)
    measured: list[Measured] = []
    for deployment in deployments(streams, workers, shards, seconds):
        measured.append(measure(deployment))
        print(measured[-1].row(measured[0]), flush=True)
    print_costs(measured)
    wall_s = time.monotonic() - began
    healthy = [each for each in measured if not each.deployment.dying_workers]
    relative = healthy[-1].us_per_stream / healthy[0].us_per_stream
    statuses = sum((each.cost.statuses for each in measured), measured[0].cost.statuses.__class__())
    is_ok = statuses.keys() == {"ok"}
    largest, dying = healthy[-1], measured[-1]
    details = {
        "streams": streams,
        "workers": workers,
        "shards": shards,
        "us_per_stream": {f"{each.deployment.streams}": round(each.us_per_stream) for each in healthy},
        "us_per_stream_dying": round(dying.us_per_stream),
        "bytes_per_stream": round(largest.cost.bytes / streams),
        "events_per_s": round(largest.cost.events / largest.wall_s),
        "largest_wall_s": round(largest.wall_s, 1),
        "dying_wall_s": round(dying.wall_s, 1),
        "statuses": dict(statuses),
    }
    text = f"a stream costs at most 1.3 times as much CPU time among {streams:,} streams as among {SMALLEST:,}"
    is_met = relative <= TARGET and is_ok and max(largest.wall_s, dying.wall_s) <= MAX_WALL_S
    print(f"{wall_s:.0f} s in total; requests by status: {dict(statuses)}")
    return Claim(text, round(relative, 3), TARGET, is_met, details)


def deployments(streams: int, workers: int, shards: int, seconds: float) -> Iterator[Deployment]:
    """Sizes by powers of ten up to the largest, which comes again with workers that die."""
    size = SMALLEST
    while size < streams:
        yield Deployment(size, ceil(size * workers / streams), ceil(size * shards / streams), seconds)
        size *= 10
    yield Deployment(streams, workers, shards, seconds)
    yield Deployment(streams, workers, shards, seconds, ceil(DYING_SHARE * workers))


def measure(deployment: Deployment) -> Measured:
    """Simulate all shards of a deployment, several times if it is small."""
    repeats = ceil(MIN_STREAMS / deployment.streams)
    loads = [*deployment.loads()] * repeats
    began, total = time.monotonic(), ShardCost()
    with ThreadPoolExecutor(JOBS) as pool:
        for cost in pool.map(simulate, loads, range(len(loads))):
            total.add(cost)
    return Measured(deployment, total, repeats, time.monotonic() - began)


def simulate(load: ShardLoad, seed: int) -> ShardCost:
    """Simulate a shard in a process of its own, which is also how its memory is measured."""
    words = map(str, (load.streams, load.workers, load.seconds, load.dying_workers, seed))
    done = subprocess.run(
        [sys.executable, "-m", "bench.scale.shard", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise MstarError(f"a shard exited with {done.returncode}: {done.stderr[-2000:]}\n  fix: see the error above")
    return ShardCost.from_json(done.stdout)


def print_costs(measured: Sequence[Measured]) -> None:
    """CPU time of each core, by kind of work."""
    print("\nCPU us of each core: per chunk, per turn and per request; periodic work per stream and minute")
    print(f"{'streams':>9} {'dying':>5}  {'core':10} {'chunk':>8} {'turn':>8} {'request':>8} {'periodic':>8}")
    for each in measured:
        size, cost = each.deployment, each.cost
        stream_minutes = each.repeats * size.streams * size.seconds / 60
        counts = {CHUNK: cost.chunks, TURN: cost.turns, REQUEST: cost.requests, PERIODIC: stream_minutes}
        for core in CORES:
            spent = (1e6 * cost.core_s[core, kind] / max(count, 1) for kind, count in counts.items())
            print(f"{size.streams:>9,} {size.dying_workers:>5}  {core:10}", *(f"{us:>8.1f}" for us in spent))
