"""Poison requests and non-idempotent ops: failures are isolated to one request."""

import os
import signal
import time

import pytest

from mstar.launch.local_launcher import LocalLauncher
from tests.chaos.deployment import ROBOT_FILE, TRAPS, TRAPS_FILE, TrapRequest, wait_until
from tests.integration.deployment_clients import Client, Oracle, add_frontend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
COUNT = 15


@pytest.fixture(scope="module")
def traps():
    """The faulty model on three workers, and its oracle."""
    oracle = Oracle(TRAPS, [TrapRequest(key, steps=60) for key in range(COUNT)])
    with LocalLauncher({"traps": TRAPS_FILE}, {"traps": '[place]\npart = ["a", "b", "c"]'}) as local:
        yield local, add_frontend(local), oracle


def serve(front_end, oracle, bad):
    """Fifteen good requests and a bad one, concurrently. Checks the good ones; returns the bad one."""
    good = [Client(front_end, "traps", request) for request in oracle.requests]
    harmful = Client(front_end, "traps", bad).wait()
    for number, client in enumerate(good):
        oracle.check(client.wait(), number)
    return harmful


def test_a_raising_request_fails_alone(traps):
    local, front_end, oracle = traps
    before = len(local.recent_exits)
    for trap, error in (("raise", ("ValueError", "the trap of 99")), ("route", ("KeyError", "'the route of 99'"))):
        end = serve(front_end, oracle, TrapRequest(99, trap=trap, at=20)).end
        assert (end.status, end.error_type, end.error_message) == ("failed", *error)
    assert len(local.recent_exits) == before


@pytest.mark.parametrize("trap", ["kill", "abort"])
def test_a_request_that_kills_its_worker_is_not_retried_twice(traps, trap, report):
    local, front_end, oracle = traps
    wait_until(lambda: set(local.health().values()) == {"up"})
    before = len(local.recent_exits)
    harmful = serve(front_end, oracle, TrapRequest(99, trap=trap, at=20))
    end, crashes = harmful.end, len(local.recent_exits) - before
    report(f"poison by {trap}: {end.status} after {crashes} deaths, in {harmful.duration_s:.2f} s")
    assert (end.status, end.error_type) == ("poison", "Poison")
    assert crashes == 2


@pytest.mark.parametrize("victims", [("a", "b"), ("conductor",)])
def test_a_non_idempotent_op_is_not_run_twice(victims, tmp_path):
    moved = tmp_path / "moves"
    with LocalLauncher({"robot": ROBOT_FILE}, {"robot": '[place]\narm = ["a", "b"]'}) as local:
        client = Client(add_frontend(local), "robot", TrapRequest(1, steps=1000, file=str(moved)))
        wait_until(lambda: moved.exists() and len(moved.read_text().split()) > 10)
        for name in victims:  # both workers: it is on one of them
            os.kill(local.pid(name), signal.SIGKILL)
        end = client.wait().end
        assert (end.status, end.error_type) == ("not_retryable", "NotRetryable")
        assert end.error_message.endswith("walk `act` is not idempotent")
        wait_until(lambda: set(local.health().values()) == {"up"})
        time.sleep(0.2)
        moves = moved.read_text().split()
        assert moves == [str(number) for number in range(len(moves))]
        assert len(moves) < 1000
