"""Several times as many requests as can be served, answered or not: who comes in is served as before."""

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
"""A request takes eight steps of 10 ms, and eight requests share a step: a hundred requests a second at best."""
LIVE, QUEUE = 16, 16
LOAD_FACTORS = (2, 3, 5)
CAPACITY_S, FLOOD_S, ROUNDS = 2.0, 4.0, 2
RAMP_S = 0.5
"""What ends so soon after a turn began is not counted: places were free."""
TIMEOUT_S = 1.0
"""Seconds after which an unfinished request counts as not served."""
TEXT = f"{WORDS} {WAIT_S}"


def completed_rate(crowd_: list[RequestRecord], seconds: float) -> float:
    """How many requests a second were served whole and in time, while the crowd asked."""
    ends = [one.arrived for one in crowd_ if one.is_whole and one.arrived - one.begun <= TIMEOUT_S]
    return sum(RAMP_S <= end <= seconds for end in ends) / (seconds - RAMP_S)


def seconds_until_admitted(crowd_: list[RequestRecord]) -> list[float]:
    """For each who was refused, after how many seconds the next came who was let in."""
    let_in = sorted(one.begun for one in crowd_ if one.status == 200)
    refused = [one.begun for one in crowd_ if one.status == 429]
    return [let_in[at] - begun for begun in refused if (at := bisect.bisect(let_in, begun)) < len(let_in)]


def run_queue_wait(pid: int) -> float:
    """For how many seconds the loop of a process was ready and had no processor: how busy others kept the machine."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


class Figures:
    """What all turns at one load came to."""

    def __init__(self) -> None:
        self.share: list[float] = []
        self.waited: list[float] = []
        """Which part of the time the front end had no processor, in percent."""
        self.rows: defaultdict[str, list[float]] = defaultdict(list)
        """Milliseconds."""
        self.others = 0
        """How many had an answer that is neither whole nor a refusal."""

    def add(self, crowd_: list[RequestRecord], share: float, waited_: float) -> None:
        """One turn."""
        self.share.append(share)
        self.waited.append(100 * waited_)
        refused = [one for one in crowd_ if one.status in (429, 503)]
        self.rows["refusal"] += [1000 * (one.arrived - one.begun) for one in refused]
        self.rows["seen"] += [1000 * (one.read - one.begun) for one in refused]
        self.rows["asked late"] += [1000 * (one.begun - one.planned) for one in crowd_]
        self.rows["told to wait"] += [1000 * one.retry_after for one in refused]
        self.rows["until free"] += [1000 * one for one in seconds_until_admitted(crowd_)]
        self.others += sum(one.status not in (200, 429, 503) for one in crowd_)

    def p(self, name: str, part: float) -> float:
        """A percentile, in milliseconds."""
        return round(percentile(self.rows[name], part), 1)

    @property
    def content(self) -> dict[str, Any]:
        """All of it."""
        return {
            "share": round(sum(self.share) / len(self.share), 3),
            "refused": len(self.rows["refusal"]),
            "refusal_p50_ms": self.p("refusal", 0.5),
            "refusal_p99_ms": self.p("refusal", 0.99),
            "seen_p99_ms": self.p("seen", 0.99),
            "asked_late_p99_ms": self.p("asked late", 0.99),
            "told_to_wait_p50_ms": self.p("told to wait", 0.5),
            "until_free_p50_ms": self.p("until free", 0.5),
            "no_processor_percent": round(max(self.waited)),
            "other_answers": self.others,
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
    """The headline."""
    flags = ("--max-running-requests", str(LIVE), "--max-queued-requests", str(QUEUE), "--max-batch-size", str(BATCH))
    with serve(model_file("timestamps"), *flags) as (port, pid):
        capacities, results = _measure(port, pid)
    rows = [Row("served without rejections", "requests/s", capacities)]
    for times, one in results.items():
        rows.append(Row(f"served whole in {TIMEOUT_S:.0f} s at {times} times that", "of it", one.share))
        rows.append(Row("  a refusal, until the kernel has it", "ms", one.rows["refusal"]))
        rows.append(Row("  a refusal, until its client has it", "ms", one.rows["seen"]))
        rows.append(Row("  the front end without a processor", "%", one.waited))
        rows.append(Row("  told to wait", "ms", one.rows["told to wait"]))
        rows.append(Row("  until the next was let in", "ms", one.rows["until free"]))
    print_table(rows)
    payload = {f"{times}x": one.content for times, one in results.items()}
    share = min(one["share"] for one in payload.values())
    late = max(one["refusal_p99_ms"] for one in payload.values())
    claim = (
        "asked for two, three and five times what it can serve, a server serves 0.95 of that or more, and refuses the "
        "rest in 20 ms (p99)"
    )
    holds = share >= 0.95 and late <= 20 and not any(one["other_answers"] for one in payload.values())
    return Claim(claim, share, 0.95, holds, {"refusal_p99_ms": late, **payload})
