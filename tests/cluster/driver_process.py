"""Run on a host: serves models over the cluster, with a front end and clients, and does what it is told.

Each line of its input is `["what", {"its": "arguments"}]`, a method of `DriverProcess`; each answer is one line,
`{"gives": ...}` or `{"raised": "..."}`.
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
    """What can be asked of a driver."""

    def __init__(self):
        self.cluster = self.front = None
        self.oracles, self.clients = {}, []

    def start(self, models, placements, ready_s=90.0, is_open=False, **options):
        """Serve models; how long that took."""
        began = time.monotonic()
        self.cluster = RayLauncher(models, placements, options=RuntimeConfig(**options), is_insecure=is_open)
        self.cluster.start(ready_timeout_s=ready_s)
        self.front = add_frontend(self.cluster)
        return time.monotonic() - began

    def ask_lm(self, model, target, count, longest=60, tokens=24):
        """Make up requests for a language model of tests/integration/language_models.py, and compute what is right."""
        loaded, chosen = load_model(target), random.Random(model)
        writing = module_of(loaded).GenerateRequest
        wishes = [
            Sampling(max_tokens=tokens, temperature=seed % 2, top_k=20 * (seed % 3), seed=seed) for seed in range(count)
        ]
        prompts = [[chosen.randrange(6, 97) for _ in range(chosen.randint(1, longest))] for _ in wishes]
        self.oracles[model] = Oracle(loaded, [writing(*one) for one in zip(prompts, wishes, strict=True)])

    def ask_example(self, model, target):
        """Take the requests that a model's file suggests, and compute what is right."""
        self.oracles[model] = Oracle.from_file(target)

    def send(self, model, count, patience=30.0):
        """So many clients at the same time."""
        requests = self.oracles[model].requests
        new = [Client(self.front, model, requests[n % len(requests)], timeout_s=patience) for n in range(count)]
        self.clients += [(self.oracles[model], number, client) for number, client in enumerate(new)]

    def judge(self, seconds=30.0):
        """Wait for all clients; each must have got exactly what is right. The longest silence of each."""
        asked, self.clients = self.clients, []
        for oracle, number, client in asked:
            oracle.judge(client.wait(seconds), number)
        return [client.silence for _, _, client in asked]

    def crowd(self, model, count, patience=30.0):
        """Clients, and what they got."""
        self.send(model, count, patience)
        return self.judge(patience)

    def got(self):
        """How many emissions the clients have had."""
        return sum(sum(client.got.values()) for _, _, client in self.clients)

    def health(self):
        return self.cluster.health()

    def hosts(self):
        return self.cluster.hosts()

    def deaths(self):
        return [[str(peer), why] for _, peer, why in self.cluster.recent_exits]

    def stock(self):
        return self.cluster.stats()

    def settle(self, seconds=5.0):
        """Wait until nothing is held for any request; how long that took."""
        return wait_until_idle(self.front, self.cluster.peers(), seconds)

    def stocks(self):
        return collect_stats(self.front, self.cluster.peers())

    def wait_up(self, seconds=30.0):
        """Wait until everybody is up; how long that took."""
        return wait_until(lambda: set(self.cluster.health().values()) == {"up"}, seconds)

    def wait_deaths(self, count, seconds=15.0):
        """Wait until so many children have died, or were given up."""
        wait_until(lambda: len(self.cluster.recent_exits) >= count, seconds)

    def wait_state(self, name, state, seconds=15.0):
        wait_until(lambda: self.cluster.health()[name] == state, seconds)

    def renew(self, seconds=30.0):
        """Replace every worker; how long that took."""
        began = time.monotonic()
        assert self.cluster.reload_weights().wait(seconds), self.cluster.health()
        return time.monotonic() - began

    def stop(self, grace_s=5.0):
        self.cluster.stop(grace_s)


def main(drive):
    """Do what is told until nothing more is."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # others may print
    for line in sys.stdin:
        what, given = json.loads(line)
        try:
            told = {"gives": getattr(drive, what)(**given)}
        except BaseException as error:  # noqa: BLE001  told to who asked
            told = {"raised": f"{type(error).__name__}: {error}", "where": traceback.format_exc()}
            traceback.print_exc()
        answers.write(json.dumps(told) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(DriverProcess())
