"""A flood of new connections beyond what the front end can serve: goodput, rejections and health checks.

`python -m bench.http.flood [flags of mstar serve]` prints one line for each load. In contrast to `overload`, the model
computes nothing, so that the CPU of the front end is the capacity; the load generator shares its cores. The CPU of each
process is printed beside the figures.

Workload: a toy model (bench/models/timestamps.py), one step of 0 s for each request, a new connection for each request:
closed loop with 16 and 64 clients, then Poisson arrivals at three and ten times the larger rate. `/health` is requested
ten times a second, on new connections too.
"""

from __future__ import annotations

import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.http.client import model_file, percentile, serve
from bench.http.load_generator import LoadSpec, RequestRecord, run_load

TEXT = "1 0"
CLIENTS = (16, 64)
LOAD_FACTORS = (3, 10)
SECONDS = 6.0
RAMP_S = 0.5
"""Seconds at the start of a load in which ends are not counted."""
PROBE_INTERVAL_S = 0.1
_CLOCK_TICKS_PER_S = 100


def cpu_seconds(pid: int) -> dict[str, float]:
    """CPU seconds of a process and its children, by name."""
    children = [
        child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    usage: dict[str, float] = {}
    for process in (str(pid), *children):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        name = "front end" if process == str(pid) else Path(f"/proc/{process}/comm").read_text().strip()
        usage[name] = (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS_PER_S
    return usage


@contextmanager
def measured_cpu(pid: int) -> Iterator[dict[str, float]]:
    """Cores that each process used during the block."""
    before, start, cores = cpu_seconds(pid), time.monotonic(), dict[str, float]()
    yield cores
    seconds = time.monotonic() - start
    cores |= {name: round((used - before.get(name, 0.0)) / seconds, 2) for name, used in cpu_seconds(pid).items()}


@contextmanager
def probing(port: int) -> Iterator[list[float]]:
    """Latencies of health checks during the block, in seconds."""
    is_over, latencies = threading.Event(), list[float]()

    def probe() -> None:
        while not is_over.wait(PROBE_INTERVAL_S):
            begun = time.monotonic()
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60).read()
            latencies.append(time.monotonic() - begun)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield latencies
    finally:
        is_over.set()
        thread.join()


def completed_rate(records: list[RequestRecord], timeout_s: float = 60.0) -> float:
    """Complete responses per second, each within `timeout_s`."""
    ends = [one.arrived for one in records if one.is_whole and one.arrived - one.begun <= timeout_s]
    return sum(RAMP_S <= end <= SECONDS for end in ends) / (SECONDS - RAMP_S)


def flood(flags: list[str]) -> None:
    """Measure and print all loads."""
    with serve(model_file("timestamps"), *flags) as (port, pid):
        run_load(LoadSpec(port, TEXT, 2.0, concurrency=CLIENTS[0]))  # the first requests make what is made once
        capacity = 0.0
        for clients in CLIENTS:
            with measured_cpu(pid) as cores:
                rate = completed_rate(run_load(LoadSpec(port, TEXT, SECONDS, concurrency=clients)))
            capacity = max(capacity, rate)
            print(f"closed loop, {clients} clients: {rate:.0f} requests/s; cores {cores}", flush=True)
        for factor in LOAD_FACTORS:
            with measured_cpu(pid) as cores, probing(port) as probes:
                records = run_load(LoadSpec(port, TEXT, SECONDS, rate=factor * capacity, seed=factor))
            time.sleep(1.0)  # the server finishes what it has
            print(f"{factor}x: {_describe(records, capacity)}", flush=True)
            health = f"/health p50 {1000 * percentile(probes, 0.5):.0f} ms, max {1000 * max(probes):.0f} ms"
            print(f"    {health}; cores {cores}", flush=True)


def _describe(records: list[RequestRecord], capacity: float) -> str:
    rejected = [one for one in records if one.status in (429, 503)]
    served = [one.arrived - one.begun for one in records if one.is_whole]
    parts = [
        f"sent {len(records) / SECONDS:.0f}/s",
        f"goodput {completed_rate(records) / capacity:.2f} of capacity",
        f"{completed_rate(records, 1.0) / capacity:.2f} within 1 s",
        f"latency p50 {percentile(served, 0.5):.2f} s, p99 {percentile(served, 0.99):.2f} s",
        f"{len(rejected)} rejected",
    ]
    if rejected:
        for name, latencies in (
            ("read", [one.read - one.begun for one in rejected]),
            ("in the client's kernel", [one.arrived - one.begun for one in rejected]),
        ):
            p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
            parts.append(f"rejection {name} p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms")
    others = sum(one.status not in (200, 429, 503) for one in records)
    parts.append(f"sent late p99 {1000 * percentile([one.begun - one.planned for one in records], 0.99):.0f} ms")
    return "; ".join(parts) + (f"; {others} without a response" if others else "")


if __name__ == "__main__":
    flood(sys.argv[1:])
