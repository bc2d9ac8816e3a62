"""A retry that computes other values, in real processes: the request fails, and its client never gets a mixture."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from mstar.frontend.core import RequestEnded
from mstar.launch.local_launcher import LocalLauncher
from mstar.walk.load import load_model
from tests.integration.deployment_clients import Client, add_frontend

MODEL_FILE = Path(__file__).with_name("drifting_model.py")
STEPS = 150


@pytest.fixture(scope="module")
def deployment():
    with LocalLauncher({"drift": str(MODEL_FILE)}, {"drift": '[place]\ncounter = ["a"]'}, standby=False) as local:
        yield local, add_frontend(local)


def run_with_kill(deployment, victim, *, is_drifting):
    """Kill a process while the outputs of a request arrive; return its client and the process id of its worker."""
    local, front_end = deployment
    request_type = sys.modules[type(load_model(str(MODEL_FILE))).__module__].DriftRequest
    worker = local.pid("a")
    client = Client(front_end, "drift", request_type(STEPS, is_drifting), timeout_s=120.0)
    deadline = time.monotonic() + 60.0
    while client.output_counts.get("Text", 0) < 10:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(local.pid(victim), signal.SIGKILL)
    return client.wait(90.0), worker


def outputs(client):
    return [event.value.tolist() for _, event in client.log[1:] if not isinstance(event, RequestEnded)]


def test_a_request_whose_retry_differs_ends_as_diverged_without_a_mixture(deployment):
    client, worker = run_with_kill(deployment, "a", is_drifting=True)
    assert (client.end.status, client.end.error_type) == ("failed", "Diverged")
    received = outputs(client)
    assert 10 <= len(received) < STEPS
    assert received == [[worker, step] for step in range(len(received))], "all of the first execution"


def test_a_request_whose_retry_is_equal_ends_complete(deployment):
    client, _ = run_with_kill(deployment, "a", is_drifting=False)
    assert client.end.status == "ok"
    assert outputs(client) == [[0, step] for step in range(STEPS)]


def test_a_request_that_runs_again_under_a_new_conductor_on_the_same_worker_ends_complete(deployment):
    """The worker computes the same as before, so that nothing differs."""
    client, worker = run_with_kill(deployment, "conductor", is_drifting=True)
    assert client.end.status == "ok"
    assert outputs(client) == [[worker, step] for step in range(STEPS)]
