"""Poison requests and non-idempotent ops: failures are isolated to one request."""

import os
import signal
import time
from pathlib import Path

import pytest

from mstar.conductor.recovery.crash_history import MAX_LONE_DEATHS
from mstar.launch.local_launcher import LocalLauncher
from mstar.worker.main import DEVICE_FAILED_STATUS
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


@pytest.fixture
def small_cgroup(tmp_path):
    """A memory cgroup with less memory than a request asks for."""
    mount = Path("/sys/fs/cgroup/memory")
    version_1 = mount.is_dir()
    folder = (mount if version_1 else mount.parent) / f"mstar-{tmp_path.parent.name}-{tmp_path.name}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be created: {error}")
    (folder / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(256 << 20))
    yield folder
    wait_until(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


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


def serve_poison(traps, report, bad):
    """Serve a request that ends as poison. Returns the number of workers that it killed."""
    local, front_end, oracle = traps
    wait_until(lambda: set(local.health().values()) == {"up"})
    before = len(local.recent_exits)
    harmful = serve(front_end, oracle, bad)
    end, crashes = harmful.end, len(local.recent_exits) - before
    report(f"poison by {bad.trap}: {end.status} after {crashes} deaths, in {harmful.duration_s:.2f} s")
    assert (end.status, end.error_type) == ("poison", "Poison")
    return crashes


@pytest.mark.parametrize("trap", ["abort", "exit", "device"])
def test_a_request_that_kills_its_worker_is_not_retried_twice(traps, trap, report):
    assert serve_poison(traps, report, TrapRequest(99, trap=trap, at=20)) == 2


def test_requests_survive_a_device_that_fails_once(traps, tmp_path, report):
    """A device error stays in its process, so the worker ends and its requests are replayed in a new one."""
    local, front_end, oracle = traps
    wait_until(lambda: set(local.health().values()) == {"up"})
    before = len(local.recent_exits)
    request = TrapRequest(7, steps=60, trap="device", at=20, file=str(tmp_path / "failed"))
    end = serve(front_end, oracle, request).end
    assert end.status == "ok"
    reasons = [reason for _, _, reason in local.recent_exits[before:]]
    report(f"a device that fails once: {reasons}")
    assert len(reasons) == 1
    assert str(DEVICE_FAILED_STATUS) in reasons[0]


def test_a_request_that_exhausts_memory_is_poison(traps, small_cgroup, report):
    """If the launcher sees the counter of the host only, the deaths are unexplained and it takes more of them."""
    crashes = serve_poison(traps, report, TrapRequest(99, trap="memory", at=20, file=str(small_cgroup)))
    assert 2 <= crashes <= MAX_LONE_DEATHS + 1


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
