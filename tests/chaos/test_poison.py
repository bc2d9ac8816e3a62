"""Requests that do harm, and harm done to what must not be done twice: each ends alone, and everyone else is served."""

import os
import signal
import time

import pytest

from mstar.launch.local import Local
from tests.chaos.parts import ROBOT_FILE, TRAPS, TRAPS_FILE, Ask, wait_until
from tests.served.parts import Client, Oracle, front

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
COUNT = 15


@pytest.fixture(scope="module")
def traps():
    """A deployment of the model with the traps on three workers, and what is right."""
    oracle = Oracle(TRAPS, [Ask(key, steps=60) for key in range(COUNT)])
    with Local({"traps": TRAPS_FILE}, {"traps": '[place]\npart = ["a", "b", "c"]'}) as local:
        yield local, front(local), oracle


def serve(front_end, oracle, bad):
    """Fifteen good requests and a bad one, at the same time; the good ones must be served as ever."""
    good = [Client(front_end, "traps", ask) for ask in oracle.requests]
    harmful = Client(front_end, "traps", bad).wait()
    for number, client in enumerate(good):
        oracle.judge(client.wait(), number)
    return harmful


def test_who_raises_fails_alone(traps):
    local, front_end, oracle = traps
    before = len(local.deaths)
    for trap, error in (("raise", ("ValueError", "the trap of 99")), ("route", ("KeyError", "'the route of 99'"))):
        end = serve(front_end, oracle, Ask(99, trap=trap, at=20)).end
        assert (end.status, end.error, end.text) == ("failed", *error)
    assert len(local.deaths) == before


@pytest.mark.parametrize("trap", ["kill", "abort"])
def test_who_kills_its_worker_is_not_tried_a_third_time(traps, trap, report):
    local, front_end, oracle = traps
    wait_until(lambda: set(local.health().values()) == {"up"})
    before = len(local.deaths)
    harmful = serve(front_end, oracle, Ask(99, trap=trap, at=20))
    end, deaths = harmful.end, len(local.deaths) - before
    report(f"poison by {trap}: {end.status} after {deaths} deaths, in {harmful.seconds:.2f} s")
    assert (end.status, end.error) == ("poison", "Poison")
    assert deaths == 2


@pytest.mark.parametrize("victims", [("a", "b"), ("conductor",)])
def test_what_acts_on_the_world_is_not_done_twice(victims, tmp_path):
    moved = tmp_path / "moves"
    with Local({"robot": ROBOT_FILE}, {"robot": '[place]\narm = ["a", "b"]'}) as local:
        client = Client(front(local), "robot", Ask(1, steps=1000, file=str(moved)))
        wait_until(lambda: moved.exists() and len(moved.read_text().split()) > 10)
        for name in victims:  # both workers: it is on one of them
            os.kill(local.pid(name), signal.SIGKILL)
        end = client.wait().end
        assert (end.status, end.error) == ("not_replayed", "NotReplayed")
        assert end.text.endswith("walk `act` does what must not be done twice")
        wait_until(lambda: set(local.health().values()) == {"up"})
        time.sleep(0.2)
        moves = moved.read_text().split()
        assert moves == [str(number) for number in range(len(moves))]
        assert len(moves) < 1000
