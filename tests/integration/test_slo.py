"""SLOs end to end: admission, priority and deadline statistics."""

import time
from collections.abc import Iterator

import numpy as np
import pytest

from mstar import Audio, Component, Float32, Model, Tensor, loop, op, walk
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.wire import messages as m
from mstar.wire.slo import Slo
from tests.integration.deployment_clients import add_frontend

STEP_S, CHUNK = 0.02, 2_400
"""A step takes 20 ms and makes 100 ms of audio, so that the capacity is five streams."""


class SlowTone(Component):
    """Generates audio chunk by chunk, without batching."""

    @op
    def next_chunk(self, step: int) -> Float32[Tensor, "S"]:
        """100 ms of audio."""
        time.sleep(STEP_S)
        return np.full(CHUNK, step, np.float32)


class SlowStream(Model):
    """A stream of chunks."""

    def __init__(self) -> None:
        self.tone = SlowTone()

    @walk
    def stream(self, count: int) -> Iterator[Audio]:
        for step in loop(steps=count):
            yield Audio(self.tone.next_chunk(step), rate=24_000)

    async def route(self, request: int) -> None:
        await self.stream(request)


@pytest.fixture
def front_end():
    model = SlowStream()
    with InProcessLauncher({"drip": PlannedModel(model, plan(model.graphs()))}) as deployment:
        frontend = add_frontend(deployment)
        list(frontend.open_stream("drip", 12))  # teaches the load estimator
        time.sleep(1.0)  # until the worker has reported it
        yield frontend


def submit(front_end, count, **slo):
    events = []
    request = m.Submit(front_end.new_rid(), "drip", m.Value(count), slo=Slo(**slo))
    front_end.submit(request, events.append)
    return events


def wait_end(events):
    deadline = time.monotonic() + 20
    while not events or not hasattr(events[-1], "end"):
        assert time.monotonic() < deadline, "it did not end"
        time.sleep(0.01)
    return events[-1].end


def test_a_request_that_would_break_an_slo_is_not_admitted(front_end):
    streams = [submit(front_end, 16, ttft_s=0.5) for _ in range(12)]
    ends = [wait_end(events) for events in streams]
    refused = [end for end in ends if isinstance(end, m.RequestRejected)]
    assert {end.status for end in refused} == {429}
    assert all(end.retry_after_s > 0 for end in refused)
    (op_stats,) = front_end.query_stats(m.Peer("local", 0)).result(5.0).ops
    busy_s, calls = (sum(getattr(walk, name) for walk in op_stats.walks.values()) for name in ("busy_s", "calls"))
    capacity = CHUNK / 24_000 / (busy_s / calls)  # five; less on a machine that other work slows down
    assert min(3, capacity - 2) <= len(ends) - len(refused) <= 6
    served = [events for events, end in zip(streams, ends, strict=True) if isinstance(end, m.RequestFinished)]
    assert all(len(events) == 17 for events in served)


def test_without_slos_all_requests_are_admitted(front_end):
    ends = [wait_end(events) for events in [submit(front_end, 5) for _ in range(12)]]
    assert {end.status for end in ends} == {"ok"}


def test_best_effort_requests_wait_for_streams_and_are_served(front_end):
    jobs = [submit(front_end, 20, best_effort=True) for _ in range(3)]
    stream = submit(front_end, 10)
    assert wait_end(stream).status == "ok"
    assert not any(hasattr(job[-1], "end") for job in jobs if job)
    assert {wait_end(job).status for job in jobs} == {"ok"}


def test_late_outputs_are_counted(front_end):
    submit(front_end, 3)
    for events in [submit(front_end, 10) for _ in range(9)]:  # four more than the capacity
        wait_end(events)
    stats = front_end.query_stats(m.Peer("local", 0)).result(5.0)
    (deadlines,) = stats.deadlines
    assert (deadlines.model, deadlines.kind, deadlines.count) == ("drip", "Audio", 12 + 3 + 90)
    assert deadlines.misses >= 4  # each stream beyond the capacity is late once; then its playback starts anew
    assert deadlines.lateness_s > 0
