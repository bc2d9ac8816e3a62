"""32 streams on three hosts while one host is partitioned, and while one is killed: the longest pause of each stream.

The hosts are three network namespaces of one machine, each with its own Ray node: the network is real TCP over virtual
interfaces, without a network card or a switch, and all hosts share the cores. Conductor and front end are on the first
host, a replica of the model's only component on each of the other two. Every stream is compared with what the model
computes by itself. An affected stream waits until its worker is declared dead and its steps are recomputed: the target
is for both.

Workload: a toy model whose op sleeps 4 ms and computes one integer (bench/models/counter.py), 32 streams of 400 steps.
It stands for the timing of a decode step on an accelerator; the time to recompute a long prompt is not part of it.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.claims import Claim, Row, print_table
from bench.cluster.driver import Driver, hosts
from bench.http.client import model_file, percentile

STREAMS, STEPS = 32, 400
FAULT_AT_S = 0.8
"""Seconds after the start of the streams at which a host fails; what they had by then is recomputed."""
PARTITION_S = 3.0
"""Seconds of the network partition."""
MAX_GAP_S, MAX_FENCE_S = 3.0, 2.0
PLACEMENT = """
[place]
part = ["a", "b"]
[workers.a]
host = "10.77.0.2"
[workers.b]
host = "10.77.0.3"
"""


def cluster() -> Claim:
    """Partition a host, then kill one, while streams run."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as notes, hosts(3) as made:
        joined = time.monotonic() - began
        driver = Driver(made)
        target = model_file("counter")
        driver.call("ask_count", target=target, steps=STEPS, notes=notes)
        started = driver.call("start", models={"count": target}, placements={"count": PLACEMENT})
        placed = driver.call("hosts")
        peace = driver.call("run_clients", model="count", count=STREAMS)
        cut, fence, back = _partition_host(driver, made, Path(notes))
        killed = _kill_host(driver, made)
        driver.call("stop", drain_timeout_s=1.0)
    rows = [
        Row("hosts joined", "s", [joined]),
        Row("deployment started", "s", [started]),
        Row(f"longest pause of {STREAMS} streams without a fault", "s", peace),
        Row("  of those on a partitioned host", "s", cut),
        Row("  of those on a killed host", "s", killed),
        Row("time a partitioned worker still computed", "s", [fence]),
        Row("time until it was back after the partition", "s", [back]),
    ]
    print_table(rows)
    print(
        f"hosts are network namespaces of one machine: {placed}; every stream is byte-equal to the model's own output"
    )
    gap = max(percentile(cut, 0.99), percentile(killed, 0.99))
    claim = (
        f"{STREAMS} streams of a toy model on three hosts (network namespaces of one machine), one partitioned and one "
        f"killed: all end byte-equal, no client waits longer than {MAX_GAP_S:.0f} s (p99), and the partitioned host "
        f"stops within {MAX_FENCE_S:.0f} s"
    )
    more = {
        "cut_p99_s": percentile(cut, 0.99),
        "killed_p99_s": percentile(killed, 0.99),
        "fence_s": fence,
        "back_s": back,
    }
    more = {"unit": "s"} | {name: round(value, 2) for name, value in more.items()}
    return Claim(claim, round(gap, 2), MAX_GAP_S, gap <= MAX_GAP_S and fence <= MAX_FENCE_S, more)


def _partition_host(driver: Driver, made: Any, notes: Path) -> tuple[list[float], float, float]:
    """Partition a host while streams run: pauses of the affected streams, seconds that its worker still computed, and
    seconds after the partition until that worker was back."""
    driver.call("send", model="count", count=STREAMS)
    time.sleep(FAULT_AT_S)
    at_risk = driver.call("stock_of", worker="b")["requests"]
    made.disconnect(3)
    cut = time.time()
    time.sleep(PARTITION_S)
    fence = (notes / str(os.stat(f"/run/netns/{made.name(3)}").st_ino)).stat().st_mtime - cut
    made.reconnect(3)
    healed = time.monotonic()
    silences = sorted(driver.call("check"))[-at_risk:]
    driver.call("wait_up")
    return silences, max(0.0, fence), time.monotonic() - healed


def _kill_host(driver: Driver, made: Any) -> list[float]:
    """Kill a host while streams run: pauses of the affected streams."""
    driver.call("send", model="count", count=STREAMS)
    time.sleep(FAULT_AT_S)
    at_risk = driver.call("stock_of", worker="b")["requests"]
    made.kill(3)
    return sorted(driver.call("check"))[-at_risk:]
