"""Driver process on a host: serves models over the cluster, runs clients, and executes commands.

Each input line is `["command", {"argument": ...}]`, a method of `DriverProcess`; each reply is one line,
`{"result": ...}` or `{"error": "..."}`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback

from mstar.config import RuntimeConfig
from mstar.launch.ray_launcher import RayLauncher
from mstar.requests import Sampling
from mstar.walk.load import load_model
from tests.chaos.deployment import collect_stats, wait_until_idle
from tests.integration.deployment_clients import Client, Oracle, add_frontend, module_of
from tests.launch.launcher_harness import wait_until


class DriverProcess:
    """Commands of a driver."""

    def __init__(self):
        self.cluster = self.front = None
        self.oracles, self.clients = {}, []

    def start(self, models, placements, ready_timeout_s=90.0, **options):
        """Serve models. Returns the elapsed seconds."""
        began = time.monotonic()
        self.cluster = RayLauncher(models, placements, options=RuntimeConfig(**options))
        self.cluster.start(ready_timeout_s=ready_timeout_s)
        self.front = add_frontend(self.cluster)
        return time.monotonic() - began

    def prepare_lm(self, model, target, count, longest=60, tokens=24):
        """Create requests for a model of tests/integration/language_models.py, and their expected outputs."""
        loaded, rng = load_model(target), random.Random(model)
        request_class = module_of(loaded).GenerateRequest
        sampling = [
            Sampling(max_tokens=tokens, temperature=seed % 2, top_k=20 * (seed % 3), seed=seed) for seed in range(count)
        ]
        prompts = [[rng.randrange(6, 97) for _ in range(rng.randint(1, longest))] for _ in sampling]
        self.oracles[model] = Oracle(loaded, [request_class(*each) for each in zip(prompts, sampling, strict=True)])

    def prepare_example(self, model, target):
        """Use the requests suggested by a model file, and compute their expected outputs."""
        self.oracles[model] = Oracle.from_file(target)

    def send(self, model, count, timeout_s=30.0):
        """Submit concurrent requests."""
        requests = self.oracles[model].requests
        new = [Client(self.front, model, requests[n % len(requests)], timeout_s=timeout_s) for n in range(count)]
        self.clients += [(self.oracles[model], number, client) for number, client in enumerate(new)]

    def check(self, seconds=30.0):
        """Wait for all clients and check them. Returns the longest gap of each."""
        finished, self.clients = self.clients, []
        for oracle, number, client in finished:
            oracle.check(client.wait(seconds), number)
        return [client.max_gap_s for _, _, client in finished]

    def run_clients(self, model, count, timeout_s=30.0):
        """Submit concurrent requests, wait for them and check them."""
        self.send(model, count, timeout_s)
        return self.check(timeout_s)

    def output_count(self):
        """Number of emissions received by all clients."""
        return sum(sum(client.output_counts.values()) for _, _, client in self.clients)

    def health(self):
        return self.cluster.health()

    def hosts(self):
        return self.cluster.status.hosts()

    def exits(self):
        return [[str(peer), reason] for _, peer, reason in self.cluster.recent_exits]

    def launcher_stats(self):
        return self.cluster.stats()

    def wait_idle(self, seconds=5.0):
        """Wait until no process holds resources of requests. Returns the elapsed seconds."""
        return wait_until_idle(self.front, self.cluster.peers(), seconds)

    def process_stats(self):
        return collect_stats(self.front, self.cluster.peers())

    def wait_up(self, seconds=30.0):
        """Wait until all processes are up. Returns the elapsed seconds."""
        return wait_until(lambda: set(self.cluster.health().values()) == {"up"}, seconds)

    def _unresponsive(self):
        replies = [self.front.query_activity(peer).result(5.0) for peer in set(self.cluster.conductors.values())]
        return {worker.name for reply in replies for worker in reply.workers if worker.state == "unresponsive"}

    def wait_unresponsive(self, names, seconds=10.0):
        """Wait until exactly these workers are unresponsive to their conductors."""
        wait_until(lambda: self._unresponsive() == {*names}, seconds)

    def wait_state(self, name, state, seconds=15.0):
        wait_until(lambda: self.cluster.health()[name] == state, seconds)

    def reload_weights(self, seconds=30.0):
        """Run a rolling update. Returns the elapsed seconds."""
        began = time.monotonic()
        assert self.cluster.reload_weights().wait(seconds), self.cluster.health()
        return time.monotonic() - began

    def stop(self, drain_timeout_s=5.0):
        self.cluster.stop(drain_timeout_s)


def main(driver):
    """Execute commands until the end of the input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout
    for line in sys.stdin:
        command, arguments = json.loads(line)
        try:
            reply = {"result": getattr(driver, command)(**arguments)}
        except BaseException as error:  # noqa: BLE001 - sent to the test
            reply = {"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc()}
            traceback.print_exc()
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(DriverProcess())
