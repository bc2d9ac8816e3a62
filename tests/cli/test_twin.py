"""`mstar twin` as clients, gateways and autoscalers see it: a server like that of the model, without its weights."""

import json
import math
import re
import signal
import threading
import time
import tomllib
from collections import Counter
from contextlib import ExitStack

import httpx2
import pytest

from mstar.cli import main
from mstar.cli.serving.twin import without_devices
from mstar.walk.twin import TWIN_TEXT
from tests.cli.test_serve import start_server, wait_exit, wait_ready

MODELS = """
[models.smollm2]
model = "smollm2"
[models.hibari]
model = "hibari"
[models.assistant]
model = "assistant"
"""
REPLICAS = """
[models.smollm2]
model = "smollm2"
[models.smollm2.place]
lm = { workers = ["gpu0", "gpu1"], min_replicas = 1 }
"""
GPU_PLACEMENT = """
[place]
lm = "gpu0"
[workers.gpu0]
device = "cuda:3"
memory = 0.9
ranks = 2
cpus = 2
[components.lm]
dtype = "bfloat16"
"""
SCALING_TIMEOUT_S = 60.0


def start_twin(model, *more):
    return start_server(model, *more, verb="twin")


def chat(url, model, max_tokens=64, timeout=60.0, **more):
    body = {"model": model, "max_tokens": max_tokens, "messages": [{"role": "user", "content": "Hello."}], **more}
    return httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=timeout)


def scrape(url, name):
    """The sum of a metric, over its labels."""
    text = httpx2.get(f"{url}/metrics").text
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))


def wait_for(condition, timeout_s=SCALING_TIMEOUT_S):
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"not within {timeout_s} s"
        time.sleep(0.1)


# ---------------------------------------------------------------- the command
def test_a_placement_loses_its_devices_and_keeps_its_workers():
    table = tomllib.loads(without_devices(GPU_PLACEMENT))
    assert table == {"place": {"lm": "gpu0"}, "workers": {"gpu0": {"cpus": 2}}}
    elastic = '[walks.answer]\n"lm.next_token" = { workers = ["a", "b"], min_replicas = 1 }\n[place]\nlm = "a"\n'
    elastic += '[components.lm.adapters]\npirate = "adapters/pirate"\n'
    assert tomllib.loads(without_devices(elastic)) == tomllib.loads(elastic)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--op-seconds", "lm.nope=1"], "no op is called `lm.nope`"),
        (["--op-seconds", "lm.next_token=fast"], "--op-seconds lm.next_token=fast is invalid"),
        (["--op-seconds", "lm.next_token=-1"], "is negative"),
        (["--size", "lm.next_token.T=many"], "--size lm.next_token.T=many is invalid"),
        (["--profile", "missing.json"], "missing.json: cannot be read"),
        (["--profile", "other=missing.json"], "which model?"),
    ],
)
def test_a_wrong_flag_is_reported(flags, problem, capsys):
    assert main(["twin", "smollm2", *flags]) == 1
    message = capsys.readouterr().err
    assert problem in message
    assert "\n  fix: " in message


# ---------------------------------------------------------------- clients
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_twins_pass_the_conformance_checks_and_are_never_taken_for_the_models(tmp_path, capsys):
    manifest = tmp_path / "mstar.toml"
    manifest.write_text(MODELS)
    with start_twin(manifest, "--op-seconds", "lm.next_token=0.005+0.0001") as (process, url):
        lines = "".join(wait_ready(process))
        assert "this server is a twin: it has no weights" in lines
        assert "this worker is a twin: it loads no weights" in lines
        assert main(["conformance", url, "--json"]) == 0
        results = json.loads(capsys.readouterr().out)
        ok = [(row["model"], row["endpoint"], row["call"]) for row in results["calls"] if row["result"] == "ok"]
        for expected in (
            ("smollm2", "/v1/chat/completions", "tools"),
            ("smollm2", "/v1/chat/completions", "json_schema"),
            ("smollm2", "/v1/completions", "plain and stream"),
            ("hibari", "/v1/audio/speech", "pcm at 24 kHz"),
            ("assistant", "/v1/realtime", "audio turn"),
            ("assistant", "/v1/audio/transcriptions", "verbose_json"),
        ):
            assert expected in ok
        listed = httpx2.get(f"{url}/v1/models")
        assert listed.headers["mstar-twin"] == "true"
        assert {(each["twin"], each["owned_by"]) for each in listed.json()["data"]} == {(True, "mstar twin")}
        assert listed.json()["data"][0]["devices"] == {"local": {"lm": "twin"}}
        assert scrape(url, "mstar_twin") == 1
        assert TWIN_TEXT in chat(url, "smollm2").json()["choices"][0]["message"]["content"]


@pytest.mark.slow
def test_a_checkpoint_without_its_weights_is_served_under_its_placement_of_gpus(tmp_path):
    from tests.models.causal_lm.causal_lm_tiny import save  # imports transformers

    folder, placement = save(tmp_path / "tiny", "llama"), tmp_path / "placement.toml"
    (folder / "model.safetensors").unlink()
    placement.write_text(GPU_PLACEMENT)
    with start_twin(folder, "--in-process", "--placement", str(placement), "--output-tokens", "7") as (process, url):
        wait_ready(process)
        response = chat(url, "tiny", max_tokens=20).json()
        assert response["usage"]["completion_tokens"] == 7
        assert response["choices"][0]["finish_reason"] == "stop"
        assert chat(url, "tiny", max_tokens=5).json()["choices"][0]["finish_reason"] == "length"


# ---------------------------------------------------------------- autoscalers and load balancers
@pytest.mark.slow
def test_replicas_of_a_twin_follow_its_load(tmp_path):
    manifest = tmp_path / "mstar.toml"
    manifest.write_text(REPLICAS)
    flags = ("--op-seconds", "lm.next_token=0.05", "--max-batch-size", "2", "--slo-tokens-per-second", "15")
    with start_twin(manifest, *flags) as (process, url), ExitStack() as stack:
        wait_ready(process)
        assert scrape(url, "mstar_workers") == 1
        statuses = []
        for _ in range(8):
            client = threading.Thread(target=lambda: statuses.append(chat(url, "smollm2").status_code))
            client.start()
            stack.callback(client.join)
        wait_for(lambda: scrape(url, "mstar_workers") == 2)
        stack.close()
        assert statuses == [200] * 8
        wait_for(lambda: scrape(url, "mstar_workers") == 1)


class Deployment:
    """Replicas of a server behind a load balancer, scaled by the rule of the HorizontalPodAutoscaler."""

    TARGET = 4.0
    """Requests in progress per replica."""

    def __init__(self, stack):
        self._stack = stack
        self.replicas = {}
        self.draining = {}
        self.statuses = []
        self._lock = threading.Lock()
        self._in_flight = Counter()

    def start(self):
        process, url = self._stack.enter_context(
            start_twin("smollm2", "--in-process", "--op-seconds", "lm.next_token=0.1")
        )
        wait_ready(process)
        self.replicas[url] = process

    def ready_urls(self):
        """What the load balancer uses: replicas that say that they are ready."""
        urls = [*self.replicas, *self.draining]
        return [url for url in urls if httpx2.get(f"{url}/ready").status_code == 200]

    def send(self):
        """A client of the load balancer: least requests in progress."""
        ready = self.ready_urls()
        with self._lock:
            url = min(ready, key=lambda each: self._in_flight[each])
            self._in_flight[url] += 1
        self.statuses.append(chat(url, "smollm2").status_code)
        with self._lock:
            self._in_flight[url] -= 1

    def autoscale(self):
        """One evaluation: desired = ceil(sum of the metric / target)."""
        load = sum(scrape(url, "mstar_requests_in_progress") for url in self.replicas)
        desired = min(2, max(1, math.ceil(load / self.TARGET)))
        while len(self.replicas) < desired:
            self.start()
        while len(self.replicas) > desired:
            url, process = self.replicas.popitem()
            process.send_signal(signal.SIGTERM)  # as the kubelet does
            self.draining[url] = process


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_autoscaler_and_a_load_balancer_lose_no_request_of_twins():
    with ExitStack() as stack:
        deployment = Deployment(stack)
        deployment.start()
        first = [threading.Thread(target=deployment.send) for _ in range(6)]
        for client in first:
            client.start()
        wait_for(lambda: deployment.autoscale() or len(deployment.replicas) == 2)
        clients = [threading.Thread(target=deployment.send) for _ in range(6)]
        for client in clients:
            client.start()
        newest, process = list(deployment.replicas.items())[-1]
        wait_for(lambda: scrape(newest, "mstar_requests_in_progress") > 0)  # the balancer uses it
        for client in first:
            client.join()
        # Scale down while it serves: readiness ends first, running requests finish, new ones go elsewhere.
        del deployment.replicas[newest]
        deployment.draining[newest] = process
        assert scrape(newest, "mstar_requests_in_progress") > 0
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: newest not in deployment.ready_urls(), 5)
        assert scrape(newest, "mstar_requests_in_progress") > 0
        assert chat(newest, "smollm2").status_code == 503
        late = threading.Thread(target=deployment.send)
        late.start()
        for client in (*clients, late):
            client.join()
        assert deployment.statuses == [200] * 13
        del deployment.draining[newest]
        assert wait_exit(process)[0] == 0
        wait_for(lambda: deployment.autoscale() is None and len(deployment.replicas) == 1)
