"""32 streams over three hosts while one of them is cut off, and while one of them dies: who waits, and for how long.

Conductor and front end are on the first host, a replica of the model's only component on each of the other two. What
every stream gets is compared with what the model computes by itself. A stream that is hurt waits until its worker is
given up, and then for all steps that are computed again: the bar is for both.
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
    """The headline."""
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
        Row(f"longest silence of {STREAMS} streams, in peace", "s", peace),
        Row("  of those at a host that was cut off", "s", cut),
        Row("  of those at a host that died", "s", killed),
        Row("cut off, a worker still computed for", "s", [fence]),
        Row("healed, it was back after", "s", [back]),
    ]
    print_table(rows)
    print(f"where: {placed}; every stream got what the model computes; {time.monotonic() - began:.0f} s in all")
    gap = max(percentile(cut, 0.99), percentile(killed, 0.99))
    claim = (
        f"{STREAMS} streams on three hosts, one partitioned and one killed: all end byte-equal, no client waits longer "
        f"than {MAX_GAP_S:.0f} s (p99), and who is cut off stops within {MAX_FENCE_S:.0f} s"
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
    """Cut a host off while streams run: how long those waited that it hurt, how long its worker went on, how long
    after it was healed that worker was back."""
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
    """Kill a host while streams run: how long those waited that it hurt."""
    driver.call("send", model="count", count=STREAMS)
    time.sleep(FAULT_AT_S)
    at_risk = driver.call("stock_of", worker="b")["requests"]
    made.kill(3)
    return sorted(driver.call("check"))[-at_risk:]
