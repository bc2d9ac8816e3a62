"""Timeouts of requests: what a tick costs, and what is kept for it."""

import sys
from dataclasses import replace

import pytest

from mstar.wire.slo import Slo
from tests.conductor.deployment import LIMITS, Deployment

RUNNING = 10


def deploy(requests, **fields):
    """A conductor with this many requests, of which ten run and all others wait in the queue."""
    limits = replace(LIMITS, max_running_requests=RUNNING, max_queued_requests=requests)
    deployment = Deployment({"talk": {"lm": ["a"]}}, limits).start_all()
    for number in range(requests):
        deployment.submit(f"r{number}", timeout_s=1e6, **fields)
    deployment.tick(0.1)
    deployment.sent.clear()
    assert len(deployment.requests) == requests
    return deployment


def calls_of(action):
    """Number of calls of Python and C functions."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "requests", [2_000, pytest.param(100_000, marks=[pytest.mark.nightly, pytest.mark.timeout(180)])]
)
def test_a_tick_costs_the_same_for_any_number_of_requests(requests):
    few, many = deploy(RUNNING + 1), deploy(requests)
    assert calls_of(lambda: many.tick(0.05)) == calls_of(lambda: few.tick(0.05))


def test_an_input_moves_the_end_of_the_wait_in_the_queue():
    deployment = deploy(RUNNING)
    deployment.submit("waiting", slo=Slo(ttft_s=2.0), timeout_s=1e6)
    deployment.tick(1.5)
    deployment.requests["waiting"].last_input_at = deployment.now
    deployment.tick(1.0)
    assert "waiting" in deployment.requests
    deployment.tick(1.1)
    assert "waiting" not in deployment.requests


def test_ended_requests_are_not_kept():
    deployment = deploy(300)
    for rid in list(deployment.requests):
        deployment.core.lifecycle.cancel(deployment.now, rid)
    deployment.tick(0.1)
    assert not deployment.core._timeouts._checks
