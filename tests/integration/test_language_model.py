"""Language models in real processes: KV caches move between workers, and KV pages are scarce."""

import random
from pathlib import Path

import pytest

from mstar.config import RuntimeConfig
from mstar.launch.local_launcher import LocalLauncher
from mstar.requests import Sampling
from mstar.walk.load import load_model
from tests.chaos.deployment import collect_stats, wait_until
from tests.integration.deployment_clients import Client, Oracle, add_frontend, module_of, run_clients

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
FILE = Path(__file__).with_name("language_models.py")
DISAGGREGATED = '[walks.read]\nlm = "reads"\n[walks.write]\nlm = ["a", "b"]'


def make_oracle(name, count, longest, tokens):
    """Oracle with greedy and sampled requests for a model of language_models.py."""
    model, rng = load_model(f"{FILE}:{name}"), random.Random(name)
    request_class = module_of(model).GenerateRequest
    sampling = [
        Sampling(max_tokens=tokens, temperature=seed % 2, top_k=20 * (seed % 3), seed=seed) for seed in range(count)
    ]
    prompts = [[rng.randrange(6, 97) for _ in range(rng.randint(1, longest))] for _ in sampling]
    return Oracle(model, [request_class(*request) for request in zip(prompts, sampling, strict=True)])


def pages(local, front_end):
    stats = collect_stats(front_end, local.peers())
    return [n for what, n in stats.items() if what.endswith("lm.pages_used")]


@pytest.mark.nightly
def test_prefill_and_decode_on_different_workers():
    oracle = make_oracle("Tiny", 32, longest=60, tokens=24)
    with LocalLauncher({"lm": f"{FILE}:Tiny"}, {"lm": DISAGGREGATED}, standby=False) as local:
        front_end = add_frontend(local)
        run_clients(front_end, "lm", oracle, 32)
        run_clients(front_end, "lm", oracle, 32)
        wait_until(lambda: pages(local, front_end) == [0, 0, 0])  # workers release them after the end of a request


def test_a_kv_cache_is_sent_while_the_rest_of_the_prompt_is_read():
    oracle = make_oracle("Tiny", 12, longest=600, tokens=8)
    options = RuntimeConfig(max_batched_tokens=96)
    with LocalLauncher({"lm": f"{FILE}:Tiny"}, {"lm": DISAGGREGATED}, options=options, standby=False) as local:
        front_end = add_frontend(local)
        run_clients(front_end, "lm", oracle, 12)
        stats = collect_stats(front_end, local.peers())
        moved = [count for what, count in stats.items() if what.endswith("positions_moved_ahead")]
        prompts = sum(len(request.prompt) for request in oracle.requests)
        assert prompts / 2 < sum(moved) < prompts
        wait_until(lambda: pages(local, front_end) == [0, 0, 0])


def test_overcommitted_kv_pages(report):
    oracle = make_oracle("FewPages", 32, longest=25, tokens=24)
    request_class = type(oracle.requests[0])
    needed = sum(-(-(len(each.prompt) + 24) // 16) for each in oracle.requests)
    with LocalLauncher({"lm": f"{FILE}:FewPages"}, standby=False) as local:
        front_end = add_frontend(local)
        clients = run_clients(front_end, "lm", oracle, 32, stall_s=60)
        duration_s = max(client.duration_s for client in clients)
        small = Client(front_end, "lm", request_class([7] * 25, Sampling(max_tokens=24))).wait()
        huge = Client(front_end, "lm", request_class([7] * 400, Sampling(max_tokens=4))).wait()
        report(
            f"pages: 24 for {needed}, all served in {duration_s:.1f} s; "
            f"too large: rejected in {1000 * huge.duration_s:.0f} ms, a small request takes "
            f"{1000 * small.duration_s:.0f} ms"
        )
        assert needed >= 2 * 24
        assert (huge.end.status, huge.end.error_type) == ("failed", "NeverFits")
        assert "26 KV cache pages of 16 positions needed, 24 exist" in huge.end.error_message
        assert huge.duration_s < small.duration_s, "it is rejected before it waits for pages or runs"
        wait_until(lambda: pages(local, front_end) == [0])


@pytest.mark.nightly
def test_a_model_of_real_size():
    oracle = make_oracle("SmolLm2Sized", 3, longest=20, tokens=4)
    with LocalLauncher(
        {"lm": f"{FILE}:SmolLm2Sized"},
        {"lm": '[walks.read]\nlm = "reads"\n[walks.write]\nlm = "writes"'},
        standby=False,
    ) as local:
        run_clients(add_frontend(local), "lm", oracle, 3, stall_s=120)
