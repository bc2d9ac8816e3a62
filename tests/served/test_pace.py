"""Promises, served: who may come in, who goes first, and what is told of it."""

import time
from collections.abc import Iterator

import numpy as np
import pytest

from mstar import Audio, Component, Float32, Model, Tensor, loop, op, walk
from mstar.launch.together import Together
from mstar.plan.compile import plan
from mstar.plan.deployment import Deployed
from mstar.wire import messages as m
from mstar.wire.pace import Pace
from tests.served.parts import front

STEP_S, CHUNK = 0.02, 2_400
"""A step takes 20 ms and makes a tenth of a second of sound: five streams are all that there can be."""


class Tap(Component):
    """Makes sound drop by drop, for one at a time."""

    @op
    def drop(self, step: int) -> Float32[Tensor, "S"]:
        """A tenth of a second."""
        time.sleep(STEP_S)
        return np.full(CHUNK, step, np.float32)


class Drip(Model):
    """So many drops."""

    def __init__(self) -> None:
        self.tap = Tap()

    @walk
    def drip(self, count: int) -> Iterator[Audio]:
        for step in loop(steps=count):
            yield Audio(self.tap.drop(step), rate=24_000)

    async def route(self, request: int) -> None:
        await self.drip(request)


@pytest.fixture
def front_end():
    model = Drip()
    with Together({"drip": Deployed(model, plan(model.graphs()))}) as deployment:
        found = front(deployment)
        list(found.open("drip", 12))  # so that it is known what a stream takes
        time.sleep(0.3)  # until the worker has told so
        yield found


def submit(front_end, count, **pace):
    told = []
    request = m.Submit(front_end.new_rid(), "drip", m.Value(count), pace=Pace(**pace))
    front_end.listen(request, told.append)
    return told


def ended(told):
    until = time.monotonic() + 20
    while not told or not hasattr(told[-1], "end"):
        assert time.monotonic() < until, "it did not end"
        time.sleep(0.01)
    return told[-1].end


def test_nobody_comes_in_who_would_break_a_promise(front_end):
    streams = [submit(front_end, 16, first_s=0.5) for _ in range(12)]
    ends = [ended(told) for told in streams]
    refused = [end for end in ends if isinstance(end, m.Refused)]
    assert {end.status for end in refused} == {429}
    assert all(end.retry_after > 0 for end in refused)
    assert 3 <= len(ends) - len(refused) <= 6
    served = [told for told, end in zip(streams, ends, strict=True) if isinstance(end, m.Finished)]
    assert all(len(told) == 17 for told in served)


def test_without_a_promise_all_come_in(front_end):
    ends = [ended(told) for told in [submit(front_end, 5) for _ in range(12)]]
    assert {end.status for end in ends} == {"ok"}


def test_jobs_wait_for_streams_and_are_served_all_the_same(front_end):
    jobs = [submit(front_end, 20, is_batch=True) for _ in range(3)]
    stream = submit(front_end, 10)
    assert ended(stream).status == "ok"
    assert not any(hasattr(job[-1], "end") for job in jobs if job)
    assert {ended(job).status for job in jobs} == {"ok"}


def test_what_was_late_is_told(front_end):
    submit(front_end, 3)
    for told in [submit(front_end, 10) for _ in range(9)]:  # twice what there can be
        ended(told)
    stock = front_end.take_figures(m.Peer("local", 0)).result(5.0)
    (count,) = stock.kinds
    assert (count.model, count.kind, count.count) == ("drip", "Audio", 12 + 3 + 90)
    assert count.late > 0
    assert count.late_s > 0
