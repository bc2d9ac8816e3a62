"""Several times as many requests as can be served, answered or not: who comes in is served as before."""

from __future__ import annotations

import bisect
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.claims import Claim, Row, print_table
from bench.web.client import model_file, percentile, serve
from bench.web.crowd import Asked, Wish, crowd

WORDS, WAIT_S, BATCH = 8, 0.01, 8
"""A request takes eight steps of 10 ms, and eight requests share a step: a hundred requests a second at best."""
LIVE, QUEUE = 16, 16
TIMES = (2, 3, 5)
CAPACITY_S, FLOOD_S, TURNS = 2.0, 4.0, 2
RAMP_S = 0.5
"""What ends so soon after a turn began is not counted: places were free."""
PATIENCE_S = 1.0
"""Who has not been served whole after so long has not been served."""
TEXT = f"{WORDS} {WAIT_S}"


def served(crowd_: list[Asked], seconds: float) -> float:
    """How many requests a second were served whole and in time, while the crowd asked."""
    ends = [one.arrived for one in crowd_ if one.is_whole and one.arrived - one.begun <= PATIENCE_S]
    return sum(RAMP_S <= end <= seconds for end in ends) / (seconds - RAMP_S)


def until_free(crowd_: list[Asked]) -> list[float]:
    """For each who was refused, after how many seconds the next came who was let in."""
    let_in = sorted(one.begun for one in crowd_ if one.status == 200)
    refused = [one.begun for one in crowd_ if one.status == 429]
    return [let_in[at] - begun for begun in refused if (at := bisect.bisect(let_in, begun)) < len(let_in)]


def waited(pid: int) -> float:
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

    def add(self, crowd_: list[Asked], share: float, waited_: float) -> None:
        """One turn."""
        self.share.append(share)
        self.waited.append(100 * waited_)
        refused = [one for one in crowd_ if one.status in (429, 503)]
        self.rows["refusal"] += [1000 * (one.arrived - one.begun) for one in refused]
        self.rows["seen"] += [1000 * (one.read - one.begun) for one in refused]
        self.rows["asked late"] += [1000 * (one.begun - one.planned) for one in crowd_]
        self.rows["told to wait"] += [1000 * one.retry_after for one in refused]
        self.rows["until free"] += [1000 * one for one in until_free(crowd_)]
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
        return served(crowd(Wish(port, TEXT, CAPACITY_S, at_once=LIVE)), CAPACITY_S)

    capacity()  # the first requests make what is made once
    capacities, found = [capacity()], {times: Figures() for times in TIMES}
    for turn in range(TURNS):
        for times in TIMES[:: 1 if turn % 2 else -1]:
            before, begun = waited(pid), time.monotonic()
            came = crowd(Wish(port, TEXT, FLOOD_S, rate=times * capacities[-1], seed=turn * 10 + times))
            without = (waited(pid) - before) / (time.monotonic() - begun)
            capacities.append(capacity())
            found[times].add(came, served(came, FLOOD_S) * 2 / (capacities[-2] + capacities[-1]), without)
    return capacities, found


def overload() -> Claim:
    """The headline."""
    flags = ("--max-live", str(LIVE), "--queue-bound", str(QUEUE), "--max-batch", str(BATCH))
    with serve(model_file("pulse"), *flags) as (port, pid):
        capacities, found = _measure(port, pid)
    rows = [Row("served when nobody is turned away", "requests/s", capacities)]
    for times, one in found.items():
        rows.append(Row(f"served whole in {PATIENCE_S:.0f} s at {times} times that", "of it", one.share))
        rows.append(Row("  a refusal, until the kernel has it", "ms", one.rows["refusal"]))
        rows.append(Row("  a refusal, until its client has it", "ms", one.rows["seen"]))
        rows.append(Row("  the front end without a processor", "%", one.waited))
        rows.append(Row("  told to wait", "ms", one.rows["told to wait"]))
        rows.append(Row("  until the next was let in", "ms", one.rows["until free"]))
    print_table(rows)
    told = {f"{times}x": one.content for times, one in found.items()}
    share = min(one["share"] for one in told.values())
    late = max(one["refusal_p99_ms"] for one in told.values())
    claim = (
        "asked for two, three and five times what it can serve, a server serves 0.95 of that or more, and refuses the "
        "rest in 20 ms (p99)"
    )
    holds = share >= 0.95 and late <= 20 and not any(one["other_answers"] for one in told.values())
    return Claim(claim, share, 0.95, holds, {"refusal_p99_ms": late, **told})
