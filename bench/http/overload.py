"""Requests beyond the capacity of a server: goodput of the admitted ones, latency of the rejections.

The latency of a rejection is measured at the client, until it has read the response. The time until the kernel of the
client has the response is reported beside it: the difference is the lateness of the client process.

Workload: a toy model whose op sleeps 10 ms and computes nothing (bench/models/timestamps.py); a request is 8 steps in
batches of at most 8, so that the capacity is about 100 requests/s. It stands for a model on an accelerator, whose step
leaves the CPU to the front end; with a model on the CPU the front end has less of it.
"""

from __future__ import annotations

import bisect
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.claims import Claim, Row, print_table
from bench.http.client import model_file, percentile, serve
from bench.http.load_generator import LoadSpec, RequestRecord, run_load

WORDS, WAIT_S, BATCH = 8, 0.01, 8
"""Steps of a request, seconds of a step, and requests that share a step: a capacity of 100 requests/s at most."""
LIVE, QUEUE = 16, 16
LOAD_FACTORS = (2, 3, 5)
CAPACITY_S, FLOOD_S, ROUNDS = 2.0, 4.0, 2
RAMP_S = 0.5
"""Seconds at the start of a turn in which ends are not counted: slots were free."""
TIMEOUT_S = 1.0
"""Seconds after which an unfinished request counts as not served."""
TEXT = f"{WORDS} {WAIT_S}"


def completed_rate(crowd_: list[RequestRecord], seconds: float) -> float:
    """Requests per second that were complete and in time, while the load ran."""
    ends = [one.arrived for one in crowd_ if one.is_whole and one.arrived - one.begun <= TIMEOUT_S]
    return sum(RAMP_S <= end <= seconds for end in ends) / (seconds - RAMP_S)


def seconds_until_admitted(crowd_: list[RequestRecord]) -> list[float]:
    """For each rejected request, seconds until the next request was sent that was admitted."""
    let_in = sorted(one.begun for one in crowd_ if one.status == 200)
    refused = [one.begun for one in crowd_ if one.status == 429]
    return [let_in[at] - begun for begun in refused if (at := bisect.bisect(let_in, begun)) < len(let_in)]


def run_queue_wait(pid: int) -> float:
    """Seconds that the main thread of a process was runnable and had no CPU, because other processes had it."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


class Figures:
    """Results of all turns at one load."""

    def __init__(self) -> None:
        self.share: list[float] = []
        self.waited: list[float] = []
        """Share of the time in which the front end was runnable and had no CPU, in percent."""
        self.rows: defaultdict[str, list[float]] = defaultdict(list)
        """Milliseconds."""
        self.others = 0
        """Responses that are neither complete nor a rejection."""

    def add(self, crowd_: list[RequestRecord], share: float, waited_: float) -> None:
        """Add a turn."""
        self.share.append(share)
        self.waited.append(100 * waited_)
        rejected = [one for one in crowd_ if one.status in (429, 503)]
        self.rows["rejection"] += [1000 * (one.read - one.begun) for one in rejected]
        self.rows["kernel"] += [1000 * (one.arrived - one.begun) for one in rejected]
        self.rows["sent late"] += [1000 * (one.begun - one.planned) for one in crowd_]
        self.rows["retry after"] += [1000 * one.retry_after for one in rejected]
        self.rows["until admitted"] += [1000 * one for one in seconds_until_admitted(crowd_)]
        self.others += sum(one.status not in (200, 429, 503) for one in crowd_)

    def p(self, name: str, part: float) -> float:
        """A percentile, in milliseconds."""
        return round(percentile(self.rows[name], part), 1)

    @property
    def content(self) -> dict[str, Any]:
        """All figures."""
        return {
            "share": round(sum(self.share) / len(self.share), 3),
            "rejected": len(self.rows["rejection"]),
            "rejection_p50_ms": self.p("rejection", 0.5),
            "rejection_p99_ms": self.p("rejection", 0.99),
            "rejection_kernel_p99_ms": self.p("kernel", 0.99),
            "sent_late_p99_ms": self.p("sent late", 0.99),
            "retry_after_p50_ms": self.p("retry after", 0.5),
            "until_admitted_p50_ms": self.p("until admitted", 0.5),
            "no_cpu_percent": round(max(self.waited)),
            "other_responses": self.others,
        }


def _measure(port: int, pid: int) -> tuple[list[float], dict[int, Figures]]:
    def capacity() -> float:
        return completed_rate(run_load(LoadSpec(port, TEXT, CAPACITY_S, concurrency=LIVE)), CAPACITY_S)

    capacity()  # the first requests make what is made once
    capacities, results = [capacity()], {times: Figures() for times in LOAD_FACTORS}
    for turn in range(ROUNDS):
        for times in LOAD_FACTORS[:: 1 if turn % 2 else -1]:
            before, begun = run_queue_wait(pid), time.monotonic()
            came = run_load(LoadSpec(port, TEXT, FLOOD_S, rate=times * capacities[-1], seed=turn * 10 + times))
            without = (run_queue_wait(pid) - before) / (time.monotonic() - begun)
            capacities.append(capacity())
            results[times].add(came, completed_rate(came, FLOOD_S) * 2 / (capacities[-2] + capacities[-1]), without)
    return capacities, results


def overload() -> Claim:
    """Goodput relative to capacity, and the latency of rejections, at each load."""
    flags = ("--max-running-requests", str(LIVE), "--max-queued-requests", str(QUEUE), "--max-batch-size", str(BATCH))
    with serve(model_file("timestamps"), *flags) as (port, pid):
        capacities, results = _measure(port, pid)
    rows = [Row("served without rejections", "requests/s", capacities)]
    for times, one in results.items():
        rows.append(Row(f"served whole in {TIMEOUT_S:.0f} s at {times} times that", "of it", one.share))
        rows.append(Row("  rejection, until the client has read it", "ms", one.rows["rejection"]))
        rows.append(Row("  rejection, until the client's kernel has it", "ms", one.rows["kernel"]))
        rows.append(Row("  the front end without a CPU", "%", one.waited))
        rows.append(Row("  retry-after", "ms", one.rows["retry after"]))
        rows.append(Row("  until the next was admitted", "ms", one.rows["until admitted"]))
    print_table(rows)
    payload = {f"{times}x": one.content for times, one in results.items()}
    share = min(one["share"] for one in payload.values())
    late = max(one["rejection_p99_ms"] for one in payload.values())
    claim = (
        "a toy model (ops sleep 10 ms) at two, three and five times its capacity: goodput is at least 0.95 of "
        "capacity, and a client has read its rejection within 20 ms (p99)"
    )
    holds = share >= 0.95 and late <= 20 and not any(one["other_responses"] for one in payload.values())
    return Claim(claim, share, 0.95, holds, {"rejection_p99_ms": late, **payload})
