"""Adapters in real processes: served outputs are those of the eager run, when KV caches move and when workers die."""

import os
import random
import signal
from pathlib import Path

import pytest

from mstar.launch.local_launcher import LocalLauncher
from mstar.requests import Sampling
from mstar.walk.load import load_model
from tests.chaos.deployment import wait_until
from tests.integration.deployment_clients import Client, Oracle, add_frontend, module_of, run_clients, wait_for_clients
from tests.nn.lm.adapters.peft_folders import write_adapter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
FILE = Path(__file__).with_name("language_models.py")
DISAGGREGATED = '[walks.read]\nlm = "reads"\n[walks.write]\nlm = ["a", "b"]'
REPLICAS = '[place]\nlm = ["a", "b"]\n'


def make_oracle(folder, count, tokens):
    """Oracle whose requests have eight adapters or none; equal prompts have different ones."""
    model, rng = load_model(f"{FILE}:Tiny"), random.Random(1)
    module = module_of(model)
    network = module.network(module.TINY)
    adapters = [None, *(write_adapter(folder / f"adapter-{seed}", network, seed, size=2.0) for seed in range(8))]
    prompts = [[rng.randrange(6, 97) for _ in range(rng.randint(20, 60))] for _ in range(count // 9 + 1)]
    sampling = [Sampling(max_tokens=tokens, adapter=adapters[number % 9], seed=number) for number in range(count)]
    requests = [module.GenerateRequest(prompts[number // 9], own) for number, own in enumerate(sampling)]
    oracle = Oracle(model, requests)
    assert len({repr(expected) for expected in oracle._expected[:9]}) > 6, "most adapters change the answer"
    return oracle, adapters


def test_adapters_move_with_the_kv_cache(tmp_path):
    oracle, _ = make_oracle(tmp_path, 27, tokens=16)
    with LocalLauncher({"lm": f"{FILE}:Tiny"}, {"lm": DISAGGREGATED}, standby=False) as local:
        front_end = add_frontend(local)
        run_clients(front_end, "lm", oracle, 27)
        run_clients(front_end, "lm", oracle, 27)  # with the prefix caches of the first round


@pytest.mark.nightly
def test_replayed_requests_keep_their_adapter(tmp_path):
    oracle, adapters = make_oracle(tmp_path, 18, tokens=120)
    folders = "".join(f'{adapter.name} = "{adapter.path}"\n' for adapter in adapters[1:4])
    placement = f"{REPLICAS}[components.lm.adapters]\n{folders}"  # some are loaded with the worker
    with LocalLauncher({"lm": f"{FILE}:Tiny"}, {"lm": placement}, standby=False) as local:
        front_end = add_frontend(local)
        run_clients(front_end, "lm", oracle, 18)
        clients = [Client(front_end, "lm", request, timeout_s=170.0) for request in oracle.requests]
        wait_until(lambda: all(client.output_counts for client in clients))
        os.kill(local.pid("a"), signal.SIGKILL)
        wait_for_clients(clients)
        for number, client in enumerate(clients):
            oracle.check(client, number)
        assert len(local.recent_exits) == 1
