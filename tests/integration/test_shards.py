"""Two conductors with one model each, in real processes: a crash affects only its own requests."""

import json
import os
import signal
import time

import httpx2
import pytest

from bench.scaling import MODEL
from mstar.conductor.attempts import ATTEMPTS_PER_INCARNATION
from mstar.config import RuntimeConfig
from mstar.launch.local_launcher import LocalLauncher
from mstar.walk.load import load_model
from tests.chaos.deployment import is_fully_up, wait_until_idle
from tests.cli.test_serve import PARROT, start_server, wait_exit, wait_ready
from tests.integration.deployment_clients import Client, Oracle, add_frontend
from tests.integration.test_replicas import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PLACEMENTS = {"here": '[place]\ngenerator = ["a", "b"]', "there": '[place]\ngenerator = ["c"]'}


@pytest.fixture
def deployment():
    oracle = Oracle(load_model(str(MODEL)), [(key, 60 + key % 3) for key in range(4)])  # one worker keeps up with five
    with LocalLauncher(
        {name: str(MODEL) for name in PLACEMENTS}, PLACEMENTS, options=RuntimeConfig(conductors=2)
    ) as local:
        yield local, add_frontend(local), oracle


def attempts(front_end, clients):
    """Current attempt of each open request."""
    streams = dict(front_end._core._streams)
    return {client.rid: streams[client.rid].attempt for client in clients if client.rid in streams}


def test_a_conductor_crash_restarts_only_its_requests(deployment, report):
    local, front_end, oracle = deployment
    for victim, hurt, calm in (("conductor", "here", "there"), ("conductor-2", "there", "here")):
        wait_for(lambda: is_fully_up(local))
        clients = {name: [Client(front_end, name, request) for request in oracle.requests] for name in PLACEMENTS}
        wait_for(lambda clients=clients: all(client.output_counts for each in clients.values() for client in each))
        before = attempts(front_end, clients[calm])
        assert len(before) == len(oracle.requests)
        killed = time.monotonic()
        os.kill(local.pid(victim), signal.SIGKILL)
        again = clients[hurt]
        wait_for(lambda again=again: all(n >= ATTEMPTS_PER_INCARNATION for n in attempts(front_end, again).values()))
        restart_s = time.monotonic() - killed
        assert len(attempts(front_end, again)) == len(oracle.requests), "none of them ends without a conductor"
        assert attempts(front_end, clients[calm]).items() <= before.items(), "those of the other go on"
        for each in clients.values():
            for number, client in enumerate(each):
                oracle.check(client.wait(), number)
        gaps_s = {name: max(client.max_gap_s for client in each) for name, each in clients.items()}
        report(
            f"{victim} killed: its streams restart after {restart_s:.2f} s, gap {gaps_s[hurt]:.2f} s; "
            f"the other's for {gaps_s[calm]:.2f} s"
        )
    assert [peer.name for _, peer, _ in local.recent_exits] == ["conductor", "conductor-2"]
    wait_until_idle(front_end, local.peers())


@pytest.mark.nightly
def test_over_http_shards_are_invisible(tmp_path):
    models = "".join(
        f'[models.{name}]\nmodel = "{PARROT}:Parrot"\nplace.letters = "{name}"\n' for name in ("one", "two")
    )
    (tmp_path / "birds.toml").write_text("[server]\nconductors = 2\n" + models)
    with start_server(tmp_path / "birds.toml") as (process, url):
        wait_ready(process)
        with httpx2.Client(base_url=url, timeout=30) as client:
            for name in ("one", "two"):
                body = {"model": name, "messages": [{"role": "user", "content": "Polly"}]}
                assert client.post("/v1/chat/completions", json=body).status_code == 200
            assert [one["state"] for one in client.get("/v1/models").json()["data"]] == ["loaded", "loaded"]
            assert client.post("/v1/models/two/unload").json() == {"model": "two", "state": "unloaded"}
            states = {one["id"]: one["state"] for one in client.get("/v1/models").json()["data"]}
            assert states == {"one": "loaded", "two": "unloaded"}
            with client.stream("GET", "/v1/events") as events:
                line = next(line for line in events.iter_lines() if line.startswith("data:"))
            assert {one["name"] for one in json.loads(line[5:])["workers"]} == {"one", "two"}
            metrics = client.get("/metrics").text
            assert all(f'process="{name}"' in metrics for name in ("conductor", "conductor-2"))
        process.send_signal(signal.SIGTERM)
        assert wait_exit(process)[0] == 0
