"""GET /v1/overview: the server samples its own figures while it serves."""

import time

from mstar.server.access.api_keys import ApiKeys
from mstar.server.admin import overview
from tests.server.toy_models import BOOM
from tests.server.toy_server import chat_body, run_toy_server

CHAT = "/v1/chat/completions"


def read_until(client, condition):
    """The samples, once they meet the condition."""
    deadline = time.monotonic() + 10
    while not condition(samples := client.get("/v1/overview").json()["samples"]):
        assert time.monotonic() < deadline, samples
        time.sleep(0.02)
    return samples


def test_responses_and_errors_appear_in_the_samples(monkeypatch):
    monkeypatch.setattr(overview, "SAMPLE_INTERVAL_S", 0.05)
    with run_toy_server() as server, server.client() as client:
        read_until(client, lambda one: one["at"])  # the first sample counts nothing
        assert client.post(CHAT, json=chat_body("abc")).status_code == 200
        assert client.post(CHAT, json=chat_body(f"a{BOOM}")).status_code == 500
        samples = read_until(client, lambda one: any(one["errors_per_s"]) and any(one["batch_size"]))
        assert len({len(values) for values in samples.values()}) == 1
        assert sum(samples["responses_per_s"]) > sum(samples["errors_per_s"]) > 0
        assert any(samples["ttfo_p50_s"])
        assert max(samples["memory_bytes"]) > 10 << 20
        assert samples["at"] == sorted(samples["at"])
        (front,) = client.get("/v1/overview").json()["processes"]  # the others share its process
        assert (front["process"], front["role"], front["op_share"]) == ("front", "frontend", None)
        assert front["cpu_s_per_request"] > front["cpu_s_per_token"] > 0


def test_the_first_interval_is_empty():
    with run_toy_server() as server, server.client() as client:
        overview = client.get("/v1/overview").json()
    assert overview == {"interval_s": 10.0, "samples": {name: [] for name in FIELDS}, "processes": []}


def test_it_needs_a_key():
    with run_toy_server(keys=ApiKeys(["k"])) as server, server.client() as client:
        client.headers.pop("Authorization", None)
        assert client.get("/v1/overview").status_code == 401


FIELDS = (
    "at",
    "responses_per_s",
    "errors_per_s",
    "ttfo_p50_s",
    "ttfo_p99_s",
    "on_time",
    "batch_size",
    "cores",
    "memory_bytes",
    "running",
    "queued",
)
