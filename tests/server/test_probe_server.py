"""Probe server: probes are answered while the event loop is busy, and report a loop that hangs."""

import threading
import time

import httpx2
import pytest

from mstar.errors import LoadError
from mstar.server import probe_server
from mstar.server.access.api_keys import ApiKeys
from mstar.server.http_server import LOOP_TICK_S
from mstar.server.probe_server import serve_probes
from mstar.server.state import WorkerProcessStatus
from tests.server.toy_server import run_toy_server


@pytest.fixture(scope="module")
def server():
    with run_toy_server(keys=ApiKeys(["right"])) as started:
        yield started


@pytest.fixture
def probes(server):
    with (
        serve_probes(server.state, "127.0.0.1", 0) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=5, verify=False) as client,
    ):
        yield client


def test_probes_need_no_key(probes):
    assert (probes.get("/health").status_code, probes.get("/health").json()) == (200, {"status": "ok"})
    ready = probes.get("/ready")
    assert (ready.status_code, ready.json()["phase"]) == (200, "ready")
    assert probes.get("/metrics").status_code == 404
    assert probes.post("/health").status_code == 501


def test_ready_reports_a_worker_that_is_down(server, probes, monkeypatch):
    monkeypatch.setattr(server.state, "process_statuses", lambda: {"local": WorkerProcessStatus("down")})
    ready = probes.get("/ready")
    assert (ready.status_code, ready.json()["phase"], ready.headers["retry-after"]) == (503, "degraded", "2")


def test_a_busy_event_loop_does_not_delay_probes(server, probes):
    release = threading.Event()
    server.run_in_loop(lambda: release.wait(10))
    try:
        for path in ("/health", "/ready"):
            assert probes.get(path, timeout=2).status_code == 200
    finally:
        release.set()


def test_a_hung_event_loop_is_not_healthy(server, probes, monkeypatch):
    monkeypatch.setattr(probe_server, "MAX_LOOP_STALL_S", 2 * LOOP_TICK_S)
    release = threading.Event()
    assert probes.get("/health").status_code == 200
    server.run_in_loop(lambda: release.wait(10))
    try:
        time.sleep(2.5 * LOOP_TICK_S)
        assert {probes.get(path).status_code for path in ("/health", "/ready")} == {503}
    finally:
        release.set()
    deadline = time.monotonic() + 5
    while probes.get("/health").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_port_in_use_is_an_error(server):
    with (
        serve_probes(server.state, "127.0.0.1", 0) as port,
        pytest.raises(LoadError, match="fix: choose another --probe-port"),
        serve_probes(server.state, "127.0.0.1", port),
    ):
        pass
