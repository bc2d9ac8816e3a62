"""A transformers decoder as a component writes what the library's own generate writes, whatever happens around it."""

import sys
from collections.abc import Iterator
from importlib import metadata

import pytest
import torch

from mstar import Int64, Model, Tensor, Text, loop, walk
from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobFailed
from mstar.errors import LoadError, OutOfPages
from mstar.nn.kv.attention_interface import paged_attention_forward
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import Sampling
from mstar.testing.parity import parity_all
from tests.nn.lm.concurrent_requests import ConcurrentRequests, make_component, prompts, reference_tokens
from tests.nn.lm.model_families import FAMILIES, SMALL, network, new_network, paged_network
from tests.tiers import ci_cases

NEW = 12
SAMPLING_PARAMS = [
    Sampling(max_tokens=NEW),
    Sampling(max_tokens=NEW, temperature=0.7, seed=1),
    Sampling(max_tokens=NEW, temperature=1.0, top_k=5, seed=2),
    Sampling(max_tokens=NEW, temperature=1.3, top_p=0.8, seed=3),
    Sampling(max_tokens=NEW, temperature=0.9, min_p=0.1, repetition_penalty=1.4, seed=4),
    Sampling(max_tokens=NEW, temperature=1.0, top_k=20, top_p=0.9, min_p=0.02, repetition_penalty=1.1, seed=5),
    Sampling(max_tokens=NEW, repetition_penalty=1.5),
]


def make_requests(count):
    """Requests of all lengths, every other one greedy."""
    all_params = [
        SAMPLING_PARAMS[row // 2 % len(SAMPLING_PARAMS)] if row % 2 else SAMPLING_PARAMS[0] for row in range(count)
    ]
    return list(zip(prompts(count), all_params, strict=True))


def expected_tokens(name, requests):
    return [reference_tokens(name, prompt, params) for prompt, params in requests]


def check_everything(name):
    """16 ragged requests that join and leave at random; then in random pieces; with forks; pushed out of memory."""
    requests = make_requests(16)
    right = expected_tokens(name, requests)
    assert len({tuple(tokens) for tokens in right}) > 10
    assert ConcurrentRequests(make_component(name), 1).serve(requests) == right
    for budget in (3, 20):
        assert ConcurrentRequests(make_component(name), budget, token_budget=budget).serve(requests) == right, (
            "in pieces"
        )
    assert ConcurrentRequests(make_component(name), 2, token_budget=30).serve(requests, forks=8) == right, "with forks"
    assert ConcurrentRequests(make_component(name), 3).serve(requests, evictions=0.1) == right, (
        "copied out of memory and back"
    )
    assert ConcurrentRequests(make_component(name, swap_bytes=0), 4).serve(requests, evictions=0.1) == right, (
        "dropped and read again"
    )
    small = make_component(name, pages=60)  # all of them need about twice as much
    assert ConcurrentRequests(small, 5, token_budget=40).serve(requests) == right, "with half the memory"


def test_a_llama_in_a_crowd_writes_what_generate_writes():
    check_everything("llama")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ci_cases([name for name in FAMILIES if name != "llama"], "gemma3"))
def test_every_family_in_a_crowd_writes_what_generate_writes(name):
    check_everything(name)


def test_all_pages_come_back():
    lm = make_component("llama")
    ConcurrentRequests(lm, 1).serve(make_requests(6), forks=3)
    assert lm.decoder.store.pool.free_pages == 256


def test_oversubscription_means_waiting_not_failing():
    lm = make_component("llama", pages=24, swap_bytes=0)
    requests = [(prompt, SAMPLING_PARAMS[0]) for prompt in prompts(16)]
    needed = sum(-(-(len(prompt) + NEW) // 4) for prompt, _ in requests)
    assert needed > 2 * 24
    assert ConcurrentRequests(lm, 1).serve(requests) == expected_tokens("llama", requests)


def step(lm, tokens, caches, params=SAMPLING_PARAMS[0]):
    columns = {"tokens": tokens, "kv": caches, "sampling": [params] * len(tokens)}
    return [int(token) for (token,) in lm.ops()["next_token"].run(lm, columns, len(tokens))]


def test_a_fork_draws_what_its_original_would():
    lm = make_component("llama")
    params = Sampling(temperature=1.5, seed=3)
    cache = lm.kv()
    token = step(lm, [prompts(4)[3]], [cache], params)
    fork = cache.fork()
    assert step(lm, [torch.tensor(token)], [cache], params) == step(lm, [torch.tensor(token)], [fork], params)


def test_a_fork_goes_its_own_way():
    lm = make_component("llama")
    base, ends = prompts(3)[2], prompts(8)[3:]
    cache = lm.kv()
    step(lm, [base], [cache])
    forks = [cache.fork() for _ in ends]
    for end, fork in zip(ends, forks, strict=True):
        assert step(lm, [end], [fork]) == reference_tokens("llama", torch.cat([base, end]), Sampling(max_tokens=1))
    right = reference_tokens("llama", torch.cat([base, ends[0]]), Sampling(max_tokens=1))
    assert step(lm, [ends[0]], [cache]) == right, "the forks left it as it was"


def test_forks_share_their_pages():
    lm = make_component("llama", pages=20)
    cache = lm.kv()
    step(lm, [prompts(3)[2]], [cache], Sampling(max_tokens=1))
    assert lm.decoder.store.pool.free_pages == 2
    forks = [cache.fork() for _ in range(100)]
    assert lm.decoder.store.pool.free_pages == 2
    del forks
    cache.free()
    assert lm.decoder.store.pool.free_pages == 20


def test_a_request_that_never_fits_fails_alone_and_says_so():
    lm = make_component("llama", pages=10)
    engine = Engine()
    caches = [engine.new_state(lm, t) for t in [lm.state_kinds()["KV"]] * 2]
    jobs = [
        Job({"tokens": prompt, "kv": cache, "sampling": SAMPLING_PARAMS[0]})
        for prompt, cache in zip(prompts(3)[1:], caches, strict=True)
    ]
    good, bad = engine.run(lm, lm.ops()["next_token"], jobs)
    assert [int(good.values[0])] == reference_tokens("llama", prompts(2)[1], Sampling(max_tokens=1))
    assert isinstance(bad, JobFailed)
    with pytest.raises(OutOfPages, match="21 KV cache pages of 4 positions needed, 10 exist"):
        raise bad.error
    assert caches[1].sampler.history.tolist() == []


def test_a_request_with_a_number_that_is_none_fails_alone():
    lm = make_component("llama")
    engine = Engine()
    size = SMALL["hidden_size"]
    embeddings = [torch.randn(5, size), torch.full((3, size), float("nan")), torch.randn(2, size)]
    jobs = [
        Job({"embeddings": each, "kv": engine.new_state(lm, lm.state_kinds()["KV"]), "sampling": SAMPLING_PARAMS[0]})
        for each in embeddings
    ]
    results = engine.run(lm, lm.ops()["next_token_from_embeddings"], jobs)
    assert [isinstance(result, JobFailed) for result in results] == [False, True, False], results
    assert "the largest logit is nan" in str(results[1].error)


def test_attention_that_would_be_ignored_is_refused():
    heads = torch.zeros(1, 2, 3, 8)
    with pytest.raises(LoadError, match="paged attention does not support `position_bias` of LlamaAttention"):
        paged_attention_forward(
            network("llama").model.layers[0].self_attn, heads, heads, heads, None, position_bias=torch.zeros(1)
        )


def test_a_soft_cap_in_deterministic_mode_is_refused():
    lm = CausalLM(lambda: new_network("gemma2"), eos_token_id=2, deterministic=True)
    with pytest.raises(LoadError, match="a soft cap or sinks does not run in deterministic mode"):
        lm.kv()


class Writer(Model):
    """The plainest language model."""

    def __init__(self):
        self.lm = CausalLM(lambda: paged_network("llama"), eos_token_id=2, pages=128, page_size=4)

    @walk
    def write(self, prompt: Int64[Tensor, "T"], sampling: Sampling) -> Iterator[Text]:
        kv = self.lm.kv()
        s = loop(steps=sampling.max_tokens, token=self.lm.next_token(prompt, kv, sampling))
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, kv, sampling)
            s.stop_when(self.lm.is_end(s.token, sampling))


def test_a_walk_is_served_as_it_runs_with_prompts_and_tokens_in_one_batch():
    model = Writer()
    requests = [
        {
            "prompt": prompt,
            "sampling": Sampling(max_tokens=limit, temperature=limit % 2, seed=limit, stop_token_ids=(limit,)),
        }
        for prompt, limit in zip(prompts(6), (9, 3, 12, 1, 7, 5), strict=True)
    ]
    parity_all(model, requests, schedules=4)
    assert model.lm.decoder.store.pool.free_pages == 128


def test_a_model_file_does_not_load_the_network():
    lm = CausalLM(lambda: pytest.fail("the network was loaded"), eos_token_id=2)
    assert {"next_token", "hidden_states", "attend_only", "is_end"} <= lm.ops().keys()


def test_without_the_libraries_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mstar.nn.lm.decoder", None)
    lm = CausalLM(lambda: network("llama"), eos_token_id=2)
    with pytest.raises(LoadError, match=r"needs torch and transformers[\s\S]*fix: install torch"):
        lm.kv()


@pytest.mark.parametrize("checksum", [None, "abc"])
def test_without_transformers_it_says_what_to_install(checksum, monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    def load():
        from transformers import LlamaForCausalLM

        return LlamaForCausalLM

    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr(metadata, "version", version)
    lm = CausalLM(load, eos_token_id=2, weights_checksum=checksum)
    with pytest.raises(LoadError, match=r"needs torch and transformers[\s\S]*fix: install torch"):
        lm.kv()


def test_the_kernels_are_compiled_while_torch_is_imported(monkeypatch):
    events = []

    def import_torch(_):
        events.append("import")
        raise ImportError("torch")

    monkeypatch.setattr("mstar.nn.lm.causal_lm.start_compiling", lambda: events.append("compile"))
    monkeypatch.setattr(CausalLM, "_decoder_class", import_torch)
    with pytest.raises(LoadError, match="needs torch"):
        CausalLM(lambda: None, eos_token_id=0).prepare()
    assert events == ["compile", "import"]
