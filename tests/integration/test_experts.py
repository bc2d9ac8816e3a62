"""Experts of a component in a process of their own: equal tokens, predictable bytes, and no stream lost with it."""

import os
import random
import signal
from pathlib import Path

import pytest

from mstar.launch.local_launcher import LocalLauncher
from mstar.nn.lm.remote_experts import ExpertSizes
from mstar.requests import Sampling
from mstar.walk.load import load_model
from tests.chaos.deployment import collect_stats, wait_until
from tests.integration.deployment_clients import (
    REQUEST_TIMEOUT_S,
    Client,
    Oracle,
    add_frontend,
    module_of,
    run_clients,
)
from tests.integration.expert_models import WIDE
from tests.tiers import ci_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FILE = Path(__file__).with_name("expert_models.py")
FAMILIES = ["Qwen3Moe", "GptOss", "Qwen3Next"]
PLACEMENT = '[place]\nlm = "main"\n[components.lm]\nexperts = "cpu"\n'
FLOAT32_BYTES = 4


@pytest.fixture(autouse=True)
def _tests_are_importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)


def make_oracle(name, count, tokens=16, *, is_sampled=True):
    model, rng = load_model(f"{FILE}:{name}"), random.Random(name)
    prompts = [[rng.randrange(6, 97) for _ in range(rng.randint(1, 40))] for _ in range(count)]
    sampling = [
        Sampling(max_tokens=tokens, temperature=is_sampled and seed % 2, top_k=20, seed=seed) for seed in range(count)
    ]
    requests = zip(prompts, sampling, strict=True)
    return Oracle(model, [module_of(model).GenerateRequest(*request) for request in requests])


def child_pids(local, worker):
    """Process ids of the children of a worker."""
    pid = local.pid(worker)
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def moved_bytes(local, front_end):
    """Bytes that moved between workers and experts so far."""
    stats = collect_stats(front_end, local.peers())
    return sum(count for what, count in stats.items() if what.endswith("lm.expert_bytes"))


@pytest.mark.parametrize("names", ci_cases([["Qwen3Moe"], FAMILIES], ["Qwen3Moe"]))
def test_experts_in_another_process_write_the_same_tokens(names):
    models = {name.lower(): f"{FILE}:{name}" for name in names}
    with LocalLauncher(models, dict.fromkeys(models, PLACEMENT), standby=False) as local:
        front_end = add_frontend(local)
        assert len(child_pids(local, "main")) == len(names)
        for name in names:
            run_clients(front_end, name.lower(), make_oracle(name, 8), 8)


@pytest.mark.nightly
def test_the_bytes_that_move_are_predicted():
    oracle = make_oracle("Wide", 8, is_sampled=False)
    sizes = ExpertSizes(WIDE["num_hidden_layers"], WIDE["hidden_size"], WIDE["num_experts_per_tok"], FLOAT32_BYTES)
    tokens = sum(len(request.prompt) + request.sampling.max_tokens for request in oracle.requests)
    with LocalLauncher({"lm": f"{FILE}:Wide"}, {"lm": PLACEMENT}, standby=False) as local:
        front_end = add_frontend(local)
        loaded = moved_bytes(local, front_end)
        run_clients(front_end, "lm", oracle, 8)
        moved = moved_bytes(local, front_end) - loaded
    assert moved == pytest.approx(sizes.activation_bytes(tokens), rel=0.1)


@pytest.mark.nightly
def test_streams_of_a_worker_that_lost_its_experts_are_whole():
    oracle = make_oracle("Wide", 8, tokens=48)
    with LocalLauncher({"lm": f"{FILE}:Wide"}, {"lm": PLACEMENT}) as local:
        front_end = add_frontend(local)
        (experts,) = child_pids(local, "main")
        clients = [Client(front_end, "lm", request, timeout_s=REQUEST_TIMEOUT_S) for request in oracle.requests]
        wait_until(lambda: all(client.output_counts.get("Text", 0) > 4 for client in clients), 60)
        os.kill(experts, signal.SIGKILL)
        for number, client in enumerate(clients):
            oracle.check(client.wait(REQUEST_TIMEOUT_S), number)
        assert [reason for _, _, reason in local.recent_exits] == ["killed by SIGKILL"]
        assert child_pids(local, "main") != [experts]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ('experts = "cuda:7"\n', "torch cannot use the device 'cuda:7'"),
        ('experts = "cpu"\n[workers.main]\nranks = 2\n', "has ranks and a process with experts"),
    ],
    ids=["no such device", "ranks"],
)
def test_what_cannot_work_is_refused(settings, problem, capfd):
    placement = f'[place]\nlm = "main"\n[components.lm]\n{settings}'
    with pytest.raises(Exception, match=r"main"), LocalLauncher({"lm": f"{FILE}:Qwen3Moe"}, {"lm": placement}):
        pass
    assert problem in capfd.readouterr().err
