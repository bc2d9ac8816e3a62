"""A causal language model on a pretend GPU: the tokens of the CPU, with few copies and one wait per step."""

import pytest
import torch

from mstar.errors import NotFinite, RowsFailed
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.lm.sampler import sample_tokens
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.pretend_gpu import PretendTensor, count_traffic, pretend_gpu
from mstar.requests import BadSampling, Grammar, Sampling
from mstar.walk.states import KV
from tests.nn.lm.concurrent_requests import ConcurrentRequests, prompts, reference_tokens
from tests.nn.lm.model_families import FAMILIES, RECURRENT_FAMILIES, new_network
from tests.nn.lm.test_causal_lm import SAMPLING_PARAMS, expected_tokens, make_requests
from tests.nn.lm.test_grammar import VOCABULARY
from tests.tiers import ci_cases

MAX_SYNCS, MAX_COPIES = 2, 3
"""Budget of a decode step."""


def make_component(name, **sizes):
    lm = CausalLM(
        lambda: new_network(name).to(pretend_gpu()), eos_token_id=2, **({"pages": 256, "page_size": 4} | sizes)
    )
    lm.name = "lm"
    return lm


@pytest.fixture(scope="module")
def llama():
    return make_component("llama")


def check(name):
    """Requests that join and leave at random, in chunks, forked, swapped out and recomputed."""
    requests = make_requests(8)
    right = expected_tokens(name, requests)
    lm = make_component(name)
    assert ConcurrentRequests(lm, 2, token_budget=30).serve(requests, forks=4) == right
    assert ConcurrentRequests(lm, 3).serve(requests, evictions=0.1) == right, "swapped out and in"
    assert lm.decoder.store.device == pretend_gpu()
    dropping = make_component(name, swap_bytes=0)
    assert ConcurrentRequests(dropping, 4).serve(requests, evictions=0.1) == right, "dropped and computed again"


def test_a_llama_writes_what_generate_writes():
    check("llama")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ci_cases(sorted(set(FAMILIES) - {"llama"}), "gemma3"))
def test_every_family_writes_what_generate_writes(name):
    check(name)


def run_op(lm, name, **columns):
    return lm.ops()[name].run(lm, columns, len(columns["sampling"]))


def step_traffic(lm, params, op="next_token"):
    """Traffic of the third decode step of requests with these parameters, as the engine runs it."""
    caches = [lm.make_state(KV) for _ in params]
    tokens = [torch.arange(3, 8 + row) for row in range(len(params))]
    for _ in range(4):
        with count_traffic() as traffic:
            tokens = [row[0] for row in run_op(lm, op, tokens=tokens, kv=caches, sampling=params)]
            ends = run_op(lm, "is_end", token=tokens, sampling=params)
        assert not any(isinstance(value, PretendTensor) for value in (*tokens, *ends)), "the walk decides on the host"
    return traffic


@pytest.mark.parametrize("count", [1, 4, 16])
@pytest.mark.parametrize("kind", ["greedy", "sampled", "mixed", "penalties"])
def test_a_step_stays_within_its_budget(llama, kind, count):
    params = {
        "greedy": [Sampling()] * count,
        "sampled": [Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=row) for row in range(count)],
        "mixed": [SAMPLING_PARAMS[row % len(SAMPLING_PARAMS)] for row in range(count)],
        "penalties": [
            Sampling(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.1, logit_bias=((5, 1.0),), seed=row)
            for row in range(count)
        ],
    }[kind]
    traffic = step_traffic(llama, params)
    assert sum(traffic.syncs.values()) <= MAX_SYNCS, traffic.syncs
    assert sum(traffic.to_device.values()) <= MAX_COPIES, traffic.to_device
    assert sum(traffic.to_host.values()) == 1, traffic.to_host


def test_logprobs_come_home_in_one_copy(llama):
    traffic = step_traffic(llama, [Sampling(logprobs=row) for row in range(4)], "next_token_scored")
    assert sum(traffic.syncs.values()) <= MAX_SYNCS, traffic.syncs
    assert sum(traffic.to_device.values()) <= MAX_COPIES, traffic.to_device


def test_not_finite_logits_fail_their_rows_only():
    logits = torch.zeros(4, 9)
    logits[1, 3] = float("nan")
    params = [Sampling(), Sampling(temperature=1.0), Sampling(temperature=1.0), Sampling()]
    with pytest.raises(RowsFailed) as failed:
        sample_tokens(logits.to(pretend_gpu()), params, [SamplerState() for _ in params])
    assert {row: type(error) for row, error in failed.value.errors.items()} == {1: NotFinite}
    nothing = Sampling(allowed_ranges=((20, 30),), temperature=1.0)
    with pytest.raises(RowsFailed) as failed:
        sample_tokens(torch.zeros(2, 9).to(pretend_gpu()), [Sampling(), nothing], [SamplerState(), SamplerState()])
    assert {row: type(error) for row, error in failed.value.errors.items()} == {1: BadSampling}


def test_a_grammar_is_followed_on_the_device():
    params = [
        Sampling(temperature=1.0, seed=3, grammar=Grammar.regex("[0-9]{4}")),
        Sampling(temperature=1.0, seed=4),
        Sampling(grammar=Grammar.regex("a+")),
    ]
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(2))
    tokens = []
    for device in (torch.device("cpu"), pretend_gpu()):
        samplers = [SamplerState(VOCABULARY) for _ in params]
        with count_traffic() as traffic:
            tokens.append(sample_tokens(logits.to(device), params, samplers).tolist())
    assert tokens[0] == tokens[1]
    assert sum(traffic.to_device.values()) <= MAX_COPIES, "the logits of this test, and two of the sampler"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ci_cases(RECURRENT_FAMILIES, "lfm2"))
def test_a_recurrent_family_writes_what_generate_writes(name):
    requests = [(prompt, Sampling(max_tokens=8)) for prompt in prompts(5)]
    right = [reference_tokens(name, *one) for one in requests]
    for swap_bytes, budget in ((1 << 30, 7), (0, None)):
        lm = make_component(name, swap_bytes=swap_bytes)
        assert ConcurrentRequests(lm, 3, token_budget=budget).serve(requests, forks=3, evictions=0.2) == right
        assert lm.decoder.store.states.device == pretend_gpu()


def test_a_step_of_recurrent_layers_copies_their_slots_with_the_rest():
    traffic = step_traffic(make_component("lfm2"), [Sampling()] * 4)
    assert sum(traffic.syncs.values()) <= MAX_SYNCS, traffic.syncs
    assert sum(traffic.to_device.values()) <= MAX_COPIES, traffic.to_device
