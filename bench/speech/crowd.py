"""Requests that are made at the same time, served in one process on one thread, and when each was heard."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def one_thread() -> Any:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


def served(model: Any, requests: Sequence[Any]) -> Callable[[], tuple[float, float, int]]:
    """A function that makes all requests at once: seconds until the last ends, until half have sound, and samples."""
    import threading

    from mstar.launch.together import Together
    from mstar.plan.compile import plan
    from mstar.plan.deployment import Deployed
    from mstar.server.front import FrontEnd
    from mstar.server.streams import Ended
    from mstar.wire.messages import Finished, Peer, Submit, Value

    deployment = Together({"model": Deployed(model, plan(model.graphs()))})
    deployment.start()
    front_end = FrontEnd(deployment.node, Peer("front", 0), deployment.conductor)
    deployment.add(front_end)

    def run() -> tuple[float, float, int]:
        begun, first, samples = time.perf_counter(), dict[str, float](), list[int]()
        ended, left = threading.Event(), [len(requests)]

        def listen(rid: str) -> Callable[[Any], None]:
            taken = Counter[str]()

            def told(news: Any) -> None:
                if isinstance(news, Ended):
                    if not (isinstance(news.end, Finished) and news.end.status == "ok"):
                        raise RuntimeError(f"a request ended with {news.end}")
                    left[0] -= 1
                    if not left[0]:
                        ended.set()
                    return
                if news.kind == "Audio" and len(news.value):
                    first.setdefault(rid, time.perf_counter() - begun)
                    samples.append(len(news.value))
                taken[news.kind] += 1
                front_end.took(rid, news.kind, taken[news.kind])

            return told

        for request in requests:
            rid = front_end.new_rid()
            front_end.listen(Submit(rid, "model", Value(request), patience=60), listen(rid))
        if not ended.wait(60):
            raise RuntimeError("not all requests have ended in 60 s")
        return time.perf_counter() - begun, sorted(first.values())[len(first) // 2], sum(samples)

    return run
