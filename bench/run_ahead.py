"""How much of the time a device works while 64 requests decode, with and without run-ahead.

The device is the pretend GPU with a clock: each decode step takes 8 ms there, about that of a 7B model in bf16 on an
accelerator with 2 TB/s. Real processes: launcher, conductor, a worker with the device, and a front end that reads every
token. The pretend GPU computes on the host, which a real device does not need: so graphs compute nothing after their
capture, the tokens are always the same, and what is measured is the host. Two deployments take turns: with run-ahead,
and with the host reading each step before it launches the next one.
"""

from __future__ import annotations

import functools
import statistics
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.claims import Claim, Row, print_table
from mstar.frontend.core import Deliver
from mstar.wire.messages import Submit, Value

FILE = Path(__file__).parent / "models" / "clocked_lm.py"
PLACEMENT = '[place]\nlm = "gpu"\n[workers.gpu]\ndevice = "pretend"'
REQUESTS, PROMPT, TOKENS = 64, 16, 110
FIRST, LAST = 20, 90
"""Tokens of every request at the begin and at the end of the measurement."""
ROUNDS = 5
MIN_BUSY = 0.97
TIMEOUT_S = 60.0


def run_ahead() -> Claim:
    """Measure the share of time in which the device works."""
    shares: dict[str, list[float]] = {"RunAhead": [], "Plain": []}
    with deploy("RunAhead") as ahead, deploy("Plain") as plain:
        deployments = {"RunAhead": ahead, "Plain": plain}
        for deployment in deployments.values():
            deployment.busy_share()  # captures the graphs
        for _ in range(ROUNDS):
            for name, deployment in deployments.items():
                shares[name].append(deployment.busy_share())
    titles = {"RunAhead": "with run-ahead", "Plain": "without"}
    print_table([Row(title, "of the time", shares[name]) for name, title in titles.items()])
    busy, before = (statistics.median(shares[name]) for name in titles)
    return Claim(
        f"share of the time in which a device with steps of 8 ms works while {REQUESTS} requests decode",
        round(busy, 3),
        MIN_BUSY,
        is_met=busy >= MIN_BUSY,
        details={"without run-ahead": round(before, 3)},
    )


class Deployment:
    """A model of clocked_lm.py in real processes."""

    def __init__(self, launcher: Any, front_end: Any) -> None:
        self._launcher, self._front_end = launcher, front_end
        self._request_class = _request_class()

    def busy_share(self) -> float:
        """Share of the time that the device works, in the middle of a batch of requests."""
        from mstar.requests import Sampling

        counts = [0] * REQUESTS
        has_first, has_last, ended = threading.Event(), threading.Event(), threading.Semaphore(0)
        started, late = [0], [0]

        def on_event(row: int, rid: str, event: Any) -> None:
            if not isinstance(event, Deliver):
                ended.release()
                return
            counts[row] += 1
            self._front_end.report_consumed({(rid, event.kind): counts[row]})
            for number, seen, reached in ((FIRST, started, has_first), (LAST, late, has_last)):
                if counts[row] == number:
                    seen[0] += 1
                    if seen[0] == REQUESTS:
                        reached.set()

        for row in range(REQUESTS):
            prompt = [(7 * row + position) % 500 for position in range(PROMPT)]
            temperature = 0.8 if row % 2 else 0.0
            sampling = Sampling(max_tokens=TOKENS, temperature=temperature, top_p=0.9, seed=row)
            rid = self._front_end.new_rid()
            request = Submit(rid, "model", Value(self._request_class(prompt, sampling)), timeout_s=TIMEOUT_S)
            self._front_end.submit(request, lambda event, row=row, rid=rid: on_event(row, rid, event))
        if not has_first.wait(TIMEOUT_S):
            raise RuntimeError(f"tokens after {TIMEOUT_S:g} s: {counts}")
        before = self._device_times()
        has_last.wait(TIMEOUT_S)
        after = self._device_times()
        for _ in range(REQUESTS):
            ended.acquire(timeout=TIMEOUT_S)
        return (after[0] - before[0]) / (after[1] - before[1])

    def _device_times(self) -> tuple[int, int]:
        """Busy time of the device, and time of the host, in microseconds."""
        (worker,) = [peer for peer in self._launcher.peers() if peer.name == "gpu"]
        stats = self._front_end.query_counts(worker).result(5.0)
        return next(
            (stats[name], stats[name.replace("device_busy_us", "host_time_us")])
            for name in stats
            if name.endswith("device_busy_us")
        )


@functools.cache
def _request_class() -> Any:
    """The class of a request, from the module of the model, which must be loaded once only."""
    from mstar.walk.load import load_model

    return sys.modules[type(load_model(f"{FILE}:RunAhead")).__module__].GenerateRequest


@contextmanager
def deploy(model: str) -> Iterator[Deployment]:
    """A deployment of a model of clocked_lm.py."""
    from mstar.frontend.actor import FrontendActor
    from mstar.launch.local_launcher import LocalLauncher
    from mstar.wire.messages import Peer

    with LocalLauncher({"model": f"{FILE}:{model}"}, {"model": PLACEMENT}, standby=False) as local:
        front_end = FrontendActor(local.actor_loop, Peer("front", 0), local.conductors)
        local.add_frontend(front_end)
        yield Deployment(local, front_end)
