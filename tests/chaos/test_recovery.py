"""A worker that fails to start, as operators and clients see it: readiness, metrics, errors and the log."""

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mstar.cli import main
from tests.chaos.served_model import ToyServer

pytestmark = pytest.mark.slow


def test_a_worker_that_fails_to_start_is_reported_and_recovers_by_itself(tmp_path, capsys):
    with ToyServer(tmp_path) as server:
        client = server.client
        assert client.get("/ready").status_code == 200
        assert client.get("/ready", params={"model": "toy"}).json()["state"] == "ready"
        assert client.get("/ready", params={"model": "none"}).status_code == 404
        assert server.metrics()['mstar_worker_up{worker="t1"}'] == "1.0"

        server.cause.touch()
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        server.wait_for_line(r"worker t1 failed to start \(attempt 5, exited with status 1\), next attempt in \d\.\d s")
        answer = client.get("/ready")
        assert (answer.status_code, answer.json()["phase"]) == (503, "degraded")
        assert answer.json()["not_ready"]["toy"]["state"] == "failing"
        assert answer.json()["not_ready"]["toy"]["workers"]["t1"].startswith("restarting, ")
        assert int(answer.headers["retry-after"]) >= 1
        assert client.get("/ready", params={"model": "toy"}).status_code == 503
        (listed,) = client.get("/v1/models").json()["data"]
        assert (listed["state"], listed["ready"]) == ("failing", False)
        metrics = server.metrics()
        assert metrics['mstar_worker_up{worker="t1"}'] == metrics['mstar_model_ready{model="toy"}'] == "0.0"
        assert float(metrics['mstar_worker_failed_starts{worker="t1"}']) >= 5
        assert float(metrics['mstar_process_restarts_total{process="t1"}']) >= 5
        assert client.get("/health").status_code == 200

        begun = time.monotonic()
        refused = server.generate()
        assert time.monotonic() - begun < 10, "it does not wait for a worker"
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert refused.json()["error"]["message"].startswith("worker t1 of the model `toy` failed to start ")
        assert int(refused.headers["retry-after"]) >= 1
        assert main(["top", "--url", str(client.base_url), "--once"]) == 0
        shown = capsys.readouterr().out
        assert "degraded" in shown
        assert next(line.split()[:2] for line in shown.splitlines() if line.split()[:1] == ["t1"]) == [
            "t1",
            "restarting",
        ]

        server.cause.unlink()
        server.wait_for_line(r"worker t1 is ready again")
        assert client.get("/ready").status_code == 200
        assert server.generate().status_code == 200
        assert server.metrics()['mstar_worker_up{worker="t1"}'] == "1.0"


def test_model_commands_stop_and_resume_the_retries(tmp_path):
    with ToyServer(tmp_path) as server:
        client = server.client
        server.cause.touch()
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        server.wait_for_line(r"worker t1 failed to start \(attempt 7, ")  # the next attempt is at least 2 s later
        assert client.post("/v1/models/toy/unload").json()["state"] == "unloaded"
        server.wait_for(lambda: client.get("/ready").status_code == 200)
        assert client.get("/ready", params={"model": "toy"}).json()["state"] == "unloaded"
        assert 'mstar_worker_up{worker="t1"}' not in server.metrics()

        assert client.post("/v1/models/toy/load").json()["state"] == "loading"
        seventh = "worker t1 failed to start (attempt 7, "  # an unload ends the count
        server.wait_for(lambda: sum(seventh in line for line in [*server.lines]) == 2)
        begun = time.monotonic()
        assert server.generate().status_code == 503
        assert time.monotonic() - begun < 10, "it does not wait for a worker"

        server.cause.unlink()
        next_start = 'mstar_worker_next_start_seconds{worker="t1"}'
        next_start_s = float(server.metrics()[next_start])
        assert client.post("/v1/models/toy/load").json()["state"] == "failing"
        # A load command does not wait for the next attempt.
        server.wait_for(lambda: server.metrics()[next_start] == "0.0", next_start_s - 1)
        server.wait_for(lambda: client.get("/ready").status_code == 200)
        assert server.generate().status_code == 200


@pytest.mark.parametrize(
    "workers",
    [("t1",), pytest.param(("t1", "t2"), marks=pytest.mark.nightly)],
    ids=["one replica", "two replicas"],
)
def test_a_rolling_update_to_broken_weights_is_rolled_back_and_nobody_notices(tmp_path, workers):
    with ToyServer(tmp_path, workers) as server:
        before = server.worker_pids()
        assert len(before) == len(workers)
        server.cause.touch()
        server.process.send_signal(signal.SIGHUP)
        line = r"the rolling update stopped: worker t\d failed to start with the new weights: exited with status 1\."
        while not any(re.search(line, printed) for printed in [*server.lines]):
            assert server.generate(20).status_code == 200
            assert server.client.get("/ready").status_code == 200
            assert server.worker_pids() == before
        server.wait_for_line(r"workers not replaced: worker t\d failed to start")
        assert server.client.get("/ready").json()["rollout"]["state"] == "failed"
        assert server.metrics()['mstar_rollouts_total{result="failed"}'] == "1.0"

        server.cause.unlink()
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_line(r"all workers replaced")
        assert set(server.worker_pids()).isdisjoint(before)
        assert server.generate().status_code == 200
        assert "rollout" not in server.client.get("/ready").json()
        assert server.metrics()['mstar_rollouts_total{result="completed"}'] == "1.0"


def test_new_requests_get_the_new_weights_at_once_while_a_long_one_keeps_the_old(tmp_path):
    steps, weight = 3000, 1_000_000
    with ToyServer(tmp_path) as server:
        server.slow.touch()
        (old,) = server.worker_pids()
        long = server.stream(steps)
        received = [next(long)]
        with ThreadPoolExecutor() as pool:
            rest = pool.submit(lambda: [*long])
            server.weight.write_text(str(weight))
            server.process.send_signal(signal.SIGHUP)
            answers, begun = [], None
            while not answers or answers[-1][0] < weight:
                start = time.monotonic()
                answers.append([*server.stream(2)])
                assert answers[-1] in ([0, 1], [weight, weight + 1])
                assert time.monotonic() - start < 20, "it waited for a worker"
                begun = begun or (time.monotonic() if len(server.worker_pids()) == 2 else None)
                assert begun is None or time.monotonic() - begun < 20, "the successor is up and gets no request"
            assert server.worker_pids()[0] == old
            assert not rest.done(), "the old worker still computes the long request"
            assert server.client.get("/ready").json()["rollout"]["state"] == "running"
            server.slow.unlink()
            received += rest.result(60)
        assert received == [*range(steps)]
        server.wait_for_line(r"all workers replaced")
        assert old not in server.worker_pids()
        metrics = server.metrics()
        assert metrics['mstar_worker_up{worker="t1"}'] == "1.0"
        assert metrics['mstar_process_restarts_total{process="t1"}'] == "1.0"
