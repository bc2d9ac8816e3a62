"""A worker with an interpreter of its own, in which vLLM runs the language model of a walk."""

import os
import signal
from pathlib import Path

import pytest

from mstar.launch.local_launcher import LocalLauncher
from tests.chaos.deployment import wait_until
from tests.integration.deployment_clients import REQUEST_TIMEOUT_S, Client, add_frontend
from tests.integration.test_language_model import make_oracle
from tests.vllm_interpreter import vllm_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FILE = Path(__file__).with_name("language_models.py")


def make_placement(python):
    return f"""
[place]
lm = ["a", "b"]
[workers.a]
python = "{python}"
[workers.b]
python = "{python}"
[components.lm]
engine = "vllm"
vllm_args = "--enforce-eager"
"""


@pytest.mark.nightly
def test_streams_of_a_killed_vllm_worker_are_whole():
    oracle = make_oracle("WideHeads", 8, longest=60, tokens=48)
    with LocalLauncher({"lm": f"{FILE}:WideHeads"}, {"lm": make_placement(vllm_python())}) as local:
        front_end = add_frontend(local)
        clients = [Client(front_end, "lm", request, timeout_s=REQUEST_TIMEOUT_S) for request in oracle.requests]
        wait_until(lambda: all(client.output_counts.get("Text", 0) > 8 for client in clients), 60)
        os.kill(local.pid("a"), signal.SIGKILL)
        for number, client in enumerate(clients):
            oracle.check(client.wait(REQUEST_TIMEOUT_S), number)
        assert len(local.recent_exits) == 1
