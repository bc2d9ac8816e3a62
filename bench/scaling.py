"""Do replicas follow the load? Four times as many streams arrive for a while; workers are started and stopped.

Streams arrive at fixed times, whatever happens to those before.

Workload: a toy model whose op sleeps 20 ms and yields 0.1 s of audio (bench/models/tone_stream.py): one worker serves
five streams in real time, and the cores have almost nothing to do, so that only the number of workers counts. It stands
for a speech model with one accelerator per worker. A worker of the toy starts in about a second; loading real weights
takes longer, and late chunks last as much longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.claims import Claim, Row, print_table
from bench.models.tone_stream import RATE
from mstar.frontend.actor import FrontendActor
from mstar.frontend.core import Deliver, RequestEnded
from mstar.launch.local_launcher import LocalLauncher
from mstar.wire.messages import Peer, RequestFinished, Submit, Value

MODEL = Path(__file__).parent / "models" / "tone_stream.py"
PLACEMENT = '[place]\ngenerator = { workers = ["a", "b", "c", "d"], min_replicas = 1 }'
TONES = 5
"""Of each of two verses: a stream takes a worker 0.2 s, and sounds for a second."""
PHASES = ((6.0, 2.0), (16.0, 8.0), (16.0, 2.0))
"""Seconds and streams per second of each phase; one worker can serve five."""
TABLE_INTERVAL_S = 2.0
"""Seconds per line of the table."""
TARGET_S = 10.0
"""Seconds after the load has grown in which a chunk may be late."""


@dataclass(eq=False)
class StreamListener:
    """One stream: when each chunk came and how late that was, and how it ended."""

    late: list[tuple[float, float]] = field(default_factory=list)
    status: str = ""
    until: float = 0.0

    def on_event(self, now: float, event: Any) -> None:
        """Something has come: who has nothing left to play waits for it."""
        if isinstance(event, Deliver):
            late = max(0.0, now - self.until) if self.late else 0.0
            self.until = max(self.until, now) + len(event.value) / RATE
            self.late.append((now, late))
        elif isinstance(event, RequestEnded):
            self.status = event.end.status if isinstance(event.end, RequestFinished) else "refused"


def scaling() -> Claim:
    """Quadruple the load and reduce it again; record the number of workers and the late chunks."""
    listeners: list[StreamListener] = []
    running: list[tuple[float, int]] = []
    with LocalLauncher({"hum": str(MODEL)}, {"hum": PLACEMENT}) as local:
        front_end = FrontendActor(local.actor_loop, Peer("front", 0), local.conductors)
        local.add_frontend(front_end)
        begun = time.monotonic()

        def look() -> None:
            up = sum(state == "up" for name, state in local.health().items() if name != "conductor")
            running.append((time.monotonic() - begun, up))

        for number, at in enumerate(arrivals()):
            _wait(lambda at=at: time.monotonic() >= begun + at, look)
            listeners.append(_open_stream(front_end, number))
        _wait(lambda: all(one.status for one in listeners), look)
    return _claim(listeners, running, begun)


def arrivals() -> list[float]:
    """When streams are asked for."""
    results, at = list[float](), 0.0
    for seconds, rate in PHASES:
        results += [at + number / rate for number in range(int(seconds * rate))]
        at += seconds
    return results


def _wait(is_over: Callable[[], bool], look: Callable[[], None], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not is_over() and time.monotonic() < until:
        look()
        time.sleep(0.02)


def _open_stream(front_end: FrontendActor, number: int) -> StreamListener:
    one, rid = StreamListener(), front_end.new_rid()

    def on_event(event: Any) -> None:
        one.on_event(time.monotonic(), event)
        if isinstance(event, Deliver):
            front_end.report_consumed({(rid, event.kind): len(one.late)})

    front_end.submit(Submit(rid, "hum", Value((number, TONES))), on_event)
    return one


def _claim(listeners: list[StreamListener], running: list[tuple[float, int]], begun: float) -> Claim:
    grows = PHASES[0][0]
    chunks = sorted((at - begun, late) for one in listeners for at, late in one.late)
    _show(chunks, running)
    worst = max((at for at, late in chunks if late > 0.0), default=grows)
    most, left = max(up for _, up in running), running[-1][1]
    served = sum(one.status == "ok" for one in listeners)
    more = {"streams": len(listeners), "served": served, "most workers": most, "workers at the end": left}
    more["late chunks"] = sum(late > 0.0 for _, late in chunks)
    text = (
        f"a toy model (ops sleep 20 ms): {TARGET_S:g} s after four times as many streams arrive no chunk is late, and "
        "no stream is lost at scale-down"
    )
    value = max(0.0, worst - grows)
    holds = value <= TARGET_S and most > 1 and left == 1 and served == len(listeners)
    return Claim(text, round(value, 2), TARGET_S, holds, more)


def _show(chunks: list[tuple[float, float]], running: list[tuple[float, int]]) -> None:
    """A line for every two seconds; and all of it as rows, which are kept."""
    print(f"{'second':>6} {'streams/s':>9} {'workers':>8} {'chunks':>7} {'late':>5} {'worst, ms':>9}")
    for line in range(int(running[-1][0] / TABLE_INTERVAL_S)):
        start, end = line * TABLE_INTERVAL_S, (line + 1) * TABLE_INTERVAL_S
        up = max(count for at, count in running if start <= at < end)
        late = [late for at, late in chunks if start <= at < end]
        requests = sum(start <= at < end for at in arrivals()) / TABLE_INTERVAL_S
        count, worst = sum(one > 0.0 for one in late), 1e3 * max(late, default=0.0)
        print(f"{start:6.0f} {requests:9.1f} {up:8} {len(late):7} {count:5} {worst:9.0f}")
    ends = [sum(seconds for seconds, _ in PHASES[: number + 1]) for number in range(len(PHASES))]
    rows, start = list[Row](), 0.0
    for (_, rate), end in zip(PHASES, ends, strict=True):
        counts = [count for at, count in running if start <= at < end]
        name = f"workers with {rate:g} streams a second, until {end:g} s"
        rows.append(Row(name, "workers", counts[:: len(counts) // 8]))
        start = end
    print_table(rows)
