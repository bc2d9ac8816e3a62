"""Workers with two ranks in real processes: tensor parallelism changes no token, and a lost rank loses no stream."""

import os
import random
import signal
from pathlib import Path

import pytest

from mstar.launch.local_launcher import LocalLauncher
from mstar.requests import Sampling
from mstar.walk.load import load_model
from tests.chaos.deployment import wait_until
from tests.integration.deployment_clients import (
    REQUEST_TIMEOUT_S,
    Client,
    Oracle,
    add_frontend,
    module_of,
    run_clients,
)
from tests.integration.test_language_model import make_oracle, pages
from tests.tiers import ci_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FILE = Path(__file__).with_name("language_models.py")
FAMILIES_FILE = Path(__file__).with_name("rank_models.py")
FAMILIES = ["Llama", "Qwen2", "Qwen3", "Qwen3Moe", "Gemma3", "Mistral", "Phi"]
TWO_RANKS = '[place]\nlm = "tp"\n[workers.tp]\nranks = 2\n'
DISAGGREGATED = '[walks.read]\nlm = "reads"\n[walks.write]\nlm = ["a", "b"]\n'


def rank_pids(local, worker):
    """Process ids of the ranks of a worker except rank 0."""
    pid = local.pid(worker)
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(autouse=True)
def _tests_are_importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)


def family_oracle(name, count):
    model, rng = load_model(f"{FAMILIES_FILE}:{name}"), random.Random(name)
    prompts = [[rng.randrange(6, 97) for _ in range(rng.randint(1, 40))] for _ in range(count)]
    sampling = [Sampling(max_tokens=16, temperature=seed % 2, top_k=20, seed=seed) for seed in range(count)]
    requests = zip(prompts, sampling, strict=True)
    return Oracle(model, [module_of(model).GenerateRequest(*request) for request in requests])


@pytest.mark.parametrize("names", ci_cases([["Llama", "Gemma3"], FAMILIES], ["Llama", "Gemma3"]))
def test_two_ranks_write_what_one_process_writes(names):
    models = {name.lower(): f"{FAMILIES_FILE}:{name}" for name in names}
    with LocalLauncher(models, dict.fromkeys(models, TWO_RANKS), standby=False) as local:
        front_end = add_frontend(local)
        assert len(rank_pids(local, "tp")) == 1
        for name in names:
            run_clients(front_end, name.lower(), family_oracle(name, 8), 8)


@pytest.mark.parametrize(
    "ranks",
    [pytest.param({"reads": 2}, marks=pytest.mark.nightly), {"a": 2, "b": 2}],
    ids=["the worker that exports", "the workers that load"],
)
def test_kv_caches_move_between_workers_with_and_without_ranks(ranks):
    placement = DISAGGREGATED + "".join(f"[workers.{name}]\nranks = {count}\n" for name, count in ranks.items())
    oracle = make_oracle("Tiny", 16, longest=60, tokens=24)
    with LocalLauncher({"lm": f"{FILE}:Tiny"}, {"lm": placement}, standby=False) as local:
        front_end = add_frontend(local)
        run_clients(front_end, "lm", oracle, 16)
        wait_until(lambda: pages(local, front_end) == [0, 0, 0])


@pytest.mark.nightly
def test_scarce_pages_are_the_same_on_both_ranks():
    oracle = make_oracle("FewPages", 16, longest=25, tokens=24)
    request_class = type(oracle.requests[0])
    with LocalLauncher({"lm": f"{FILE}:FewPages"}, {"lm": TWO_RANKS}, standby=False) as local:
        front_end = add_frontend(local)
        run_clients(front_end, "lm", oracle, 16, stall_s=60)
        huge = Client(front_end, "lm", request_class([7] * 400, Sampling(max_tokens=4))).wait()
        assert (huge.end.status, huge.end.error_type) == ("failed", "NeverFits")
        run_clients(front_end, "lm", oracle, 16, stall_s=60)
        wait_until(lambda: pages(local, front_end) == [0])
        assert not local.recent_exits


@pytest.mark.parametrize("victim", ci_cases([0, 1], 1))
def test_streams_of_a_worker_that_lost_a_rank_are_whole(victim):
    oracle = make_oracle("Tiny", 8, longest=60, tokens=96)
    with LocalLauncher({"lm": f"{FILE}:Tiny"}, {"lm": TWO_RANKS}) as local:
        front_end = add_frontend(local)
        (other,) = rank_pids(local, "tp")
        clients = [Client(front_end, "lm", request, timeout_s=REQUEST_TIMEOUT_S) for request in oracle.requests]
        wait_until(lambda: all(client.output_counts.get("Text", 0) > 8 for client in clients), 60)
        os.kill(other if victim else local.pid("tp"), signal.SIGKILL)
        for number, client in enumerate(clients):
            oracle.check(client.wait(REQUEST_TIMEOUT_S), number)
        assert [reason for _, _, reason in local.recent_exits] == ["killed by SIGKILL"]
        assert rank_pids(local, "tp") != [other]
        assert not Path(f"/proc/{other}").exists()
