"""A language model in real processes: caches move between workers, pages are short, every token is the right one."""

import random
from pathlib import Path

import pytest

from mstar.launch.local_launcher import LocalLauncher
from mstar.requests import Sampling
from mstar.walk.load import load_model
from tests.chaos.deployment import child_peers, collect_stats
from tests.integration.deployment_clients import Client, Oracle, add_frontend, module_of, run_clients

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
FILE = Path(__file__).with_name("language_models.py")
DISAGGREGATED = '[walks.read]\nlm = "reads"\n[walks.write]\nlm = ["a", "b"]'
AT_ONCE_S = 0.5


def make_oracle(name, count, longest, tokens):
    """A model of the file and requests for it, and what is right: greedy ones and ones that draw by their seed."""
    model, chosen = load_model(f"{FILE}:{name}"), random.Random(name)
    writing = module_of(model).GenerateRequest
    wishes = [
        Sampling(max_tokens=tokens, temperature=seed % 2, top_k=20 * (seed % 3), seed=seed) for seed in range(count)
    ]
    prompts = [[chosen.randrange(6, 97) for _ in range(chosen.randint(1, longest))] for _ in wishes]
    return Oracle(model, [writing(*request) for request in zip(prompts, wishes, strict=True)])


def pages(local, front_end):
    found = collect_stats(front_end, child_peers(local))
    return [n for what, n in found.items() if what.endswith("lm.pages_used")]


def test_reading_and_writing_on_different_workers():
    oracle = make_oracle("Tiny", 32, longest=60, tokens=24)
    with LocalLauncher({"lm": f"{FILE}:Tiny"}, {"lm": DISAGGREGATED}, standby=False) as local:
        front_end = add_frontend(local)
        run_clients(front_end, "lm", oracle, 32)
        run_clients(front_end, "lm", oracle, 32)
        assert pages(local, front_end) == [0, 0, 0]


def test_twice_as_many_pages_are_wanted_as_there_are(report):
    oracle = make_oracle("FewPages", 32, longest=25, tokens=24)
    writing = type(oracle.requests[0])
    wanted = sum(-(-(len(each.prompt) + 24) // 16) for each in oracle.requests)
    with LocalLauncher({"lm": f"{FILE}:FewPages"}, standby=False) as local:
        front_end = add_frontend(local)
        clients = run_clients(front_end, "lm", oracle, 32, timeout_s=60)
        took = max(client.duration_s for client in clients)
        huge = Client(front_end, "lm", writing([7] * 400, Sampling(max_tokens=4))).wait()
        report(f"pages: 24 for {wanted}, all served in {took:.1f} s; too large: told in {1000 * huge.seconds:.0f} ms")
        assert wanted >= 2 * 24
        assert (huge.end.status, huge.end.error_type) == ("failed", "NeverFits")
        assert "26 KV cache pages of 16 positions needed, 24 exist" in huge.end.error_message
        assert huge.duration_s <= AT_ONCE_S
        assert pages(local, front_end) == [0]


@pytest.mark.nightly
def test_the_shape_of_a_real_one():
    oracle = make_oracle("Real", 3, longest=20, tokens=4)
    with LocalLauncher(
        {"lm": f"{FILE}:SmolLm2Sized"},
        {"lm": '[walks.read]\nlm = "reads"\n[walks.write]\nlm = "writes"'},
        standby=False,
    ) as local:
        run_clients(add_frontend(local), "lm", oracle, 3, timeout_s=120)
