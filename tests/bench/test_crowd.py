"""A crowd asks a real server, and what it notes is what happened."""

import pytest

from bench.web.crowd import Asked, Wish, crowd, run
from bench.web.overload import served, until_free
from mstar.config import Options
from tests.server.models import Parrot
from tests.server.toys_house import housing


@pytest.fixture
def house():  # each test its own: the door stays shut for a moment after a flood
    with housing({"model": Parrot()}, options=Options(max_live=2, queue_bound=0)) as started:
        yield started


def test_who_asks_again_and_again_is_served_whole(house):
    asked = run(Wish(house.port, "x", 0.3, at_once=1))
    assert len(asked) > 1
    assert {(one.status, one.is_whole, one.retry_after) for one in asked} == {(200, True, 0.0)}
    assert all(one.planned <= one.begun < one.arrived <= one.read for one in asked)


def test_a_flood_is_asked_whether_it_is_answered_or_not(house):
    asked = crowd(Wish(house.port, "slow" + "x" * 20, 0.4, rate=100, seed=1))  # two at once for 0.24 s each
    assert 20 < len(asked) < 70
    by_status = {status: [one for one in asked if one.status == status] for status in (200, 429)}
    assert len(by_status[200]) + len(by_status[429]) == len(asked)
    assert {one.is_whole for one in by_status[200]} == {True}
    assert {one.is_whole for one in by_status[429]} == {False}
    assert min(one.retry_after for one in by_status[429]) > 0
    assert all(one.begun < one.arrived <= one.read for one in asked)
    assert any(one.arrived < one.read for one in asked)  # the kernel had it before its client


def test_what_was_served_is_counted_when_it_ended():
    def one(begun, arrived, status=200):
        return Asked(begun, begun, status, is_whole=status == 200, arrived=arrived)

    came = [one(0.1, 0.2), one(0.1, 0.6), one(0.2, 1.4), one(1.2, 1.4), one(1.4, 2.1), one(0.3, 0.31, 429)]
    assert served(came, 1.5) == pytest.approx(2 / 1.0)  # one ended in the beginning, one took too long, one is behind
    assert until_free(came) == [pytest.approx(0.9)]
