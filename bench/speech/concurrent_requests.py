"""Requests that are made at the same time, served in one process on one thread, and when each got its audio."""

from __future__ import annotations

import functools
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.in_process import NAME, serve_in_process

if TYPE_CHECKING:
    from mstar.frontend.actor import FrontendActor

TIMEOUT_S = 300
"""Seconds to wait for all requests; far more than a run takes on an idle machine."""


class Spoken(NamedTuple):
    """One request: seconds from the arrival of all to its first audio and to its end, and its number of samples."""

    first_s: float
    end_s: float
    samples: int


@dataclass(frozen=True)
class Run:
    """Requests that arrived at the same time."""

    requests: Sequence[Spoken]

    @property
    def seconds(self) -> float:
        """Seconds until the last request ended."""
        return max(one.end_s for one in self.requests)

    @property
    def samples(self) -> int:
        """Samples of all requests."""
        return sum(one.samples for one in self.requests)

    @property
    def first_s(self) -> float:
        """Median seconds to the first audio."""
        return statistics.median(one.first_s for one in self.requests)

    def real_time_factor(self, rate: int) -> float:
        """Median of seconds from arrival to end, per second of audio."""
        return statistics.median(one.end_s * rate / one.samples for one in self.requests)


@contextmanager
def serve_concurrently(model: Any) -> Generator[Callable[[Sequence[Any]], Run]]:
    """A function that makes requests, all at once."""
    with serve_in_process(model) as front_end:
        yield functools.partial(_run, front_end)


def _run(front_end: FrontendActor, requests: Sequence[Any]) -> Run:
    from mstar.frontend.core import RequestEnded
    from mstar.wire.messages import RequestFinished, Submit, Value

    begun, first, ends, samples = time.perf_counter(), dict[str, float](), dict[str, float](), Counter[str]()
    ended = threading.Event()

    def listen(rid: str) -> Callable[[Any], None]:
        taken = Counter[str]()

        def on_event(event: Any) -> None:
            if isinstance(event, RequestEnded):
                if not (isinstance(event.end, RequestFinished) and event.end.status == "ok"):
                    raise RuntimeError(f"a request ended with {event.end}")
                ends[rid] = time.perf_counter() - begun
                if len(ends) == len(requests):
                    ended.set()
                return
            if event.kind == "Audio" and len(event.value):
                first.setdefault(rid, time.perf_counter() - begun)
                samples[rid] += len(event.value)
            taken[event.kind] += 1
            front_end.report_consumed({(rid, event.kind): taken[event.kind]})

        return on_event

    for request in requests:
        rid = front_end.new_rid()
        front_end.submit(Submit(rid, NAME, Value(request), timeout_s=TIMEOUT_S), listen(rid))
    if not ended.wait(TIMEOUT_S):
        raise RuntimeError(f"not all requests have ended in {TIMEOUT_S} s")
    return Run([Spoken(first[rid], end, samples[rid]) for rid, end in ends.items()])
