"""Requests that are made at the same time, served in one process on one thread, and when each was heard."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bench.in_process import NAME, serve_in_process

if TYPE_CHECKING:
    from mstar.frontend.actor import FrontendActor


@contextmanager
def serve_concurrently(model: Any) -> Generator[Callable[[Sequence[Any]], tuple[float, float, int]]]:
    """A function that makes requests, all at once: seconds until the last ends, until half have sound, and samples."""
    with serve_in_process(model) as front_end:
        yield functools.partial(_run, front_end)


def _run(front_end: FrontendActor, requests: Sequence[Any]) -> tuple[float, float, int]:
    from mstar.frontend.core import RequestEnded
    from mstar.wire.messages import RequestFinished, Submit, Value

    begun, first, samples = time.perf_counter(), dict[str, float](), list[int]()
    ended, left = threading.Event(), [len(requests)]

    def listen(rid: str) -> Callable[[Any], None]:
        taken = Counter[str]()

        def on_event(event: Any) -> None:
            if isinstance(event, RequestEnded):
                if not (isinstance(event.end, RequestFinished) and event.end.status == "ok"):
                    raise RuntimeError(f"a request ended with {event.end}")
                left[0] -= 1
                if not left[0]:
                    ended.set()
                return
            if event.kind == "Audio" and len(event.value):
                first.setdefault(rid, time.perf_counter() - begun)
                samples.append(len(event.value))
            taken[event.kind] += 1
            front_end.report_consumed(rid, event.kind, taken[event.kind])

        return on_event

    for request in requests:
        rid = front_end.new_rid()
        front_end.submit(Submit(rid, NAME, Value(request), timeout_s=60), listen(rid))
    if not ended.wait(60):
        raise RuntimeError("not all requests have ended in 60 s")
    return time.perf_counter() - begun, sorted(first.values())[len(first) // 2], sum(samples)
