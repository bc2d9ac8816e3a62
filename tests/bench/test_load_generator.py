"""A crowd asks a real server, and what it notes is what happened."""

import pytest

from bench.http.load_generator import LoadSpec, RequestRecord, run, run_load
from bench.http.overload import completed_rate, seconds_until_admitted
from mstar.config import RuntimeConfig
from tests.server.model_server import serve_models
from tests.server.toy_models import Parrot


@pytest.fixture
def model_server():  # each test its own: the door stays shut for a moment after a flood
    with serve_models(
        {"model": Parrot()}, options=RuntimeConfig(max_running_requests=2, max_queued_requests=0)
    ) as started:
        yield started


def test_closed_loop_clients_are_served(model_server):
    requests = run(LoadSpec(model_server.port, "x", 0.3, concurrency=1))
    assert len(requests) > 1
    assert {(one.status, one.is_whole, one.retry_after) for one in requests} == {(200, True, 0.0)}
    assert all(one.planned <= one.begun < one.arrived <= one.read for one in requests)


def test_an_open_loop_does_not_wait_for_responses(model_server):
    requests = run_load(
        LoadSpec(model_server.port, "slow" + "x" * 20, 0.4, rate=100, seed=1)
    )  # two at once for 0.24 s each
    assert 20 < len(requests) < 70
    by_status = {status: [one for one in requests if one.status == status] for status in (200, 429)}
    assert len(by_status[200]) + len(by_status[429]) == len(requests)
    assert {one.is_whole for one in by_status[200]} == {True}
    assert {one.is_whole for one in by_status[429]} == {False}
    assert min(one.retry_after for one in by_status[429]) > 0
    assert all(one.begun < one.arrived <= one.read for one in requests)
    assert any(one.arrived < one.read for one in requests)  # the kernel had it before its client


def test_what_was_served_is_counted_when_it_ended():
    def one(begun, arrived, status=200):
        return RequestRecord(begun, begun, status, is_whole=status == 200, arrived=arrived)

    came = [one(0.1, 0.2), one(0.1, 0.6), one(0.2, 1.4), one(1.2, 1.4), one(1.4, 2.1), one(0.3, 0.31, 429)]
    assert completed_rate(came, 1.5) == pytest.approx(
        2 / 1.0
    )  # one ended in the beginning, one took too long, one is behind
    assert seconds_until_admitted(came) == [pytest.approx(0.9)]
