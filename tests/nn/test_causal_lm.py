"""A transformers decoder as a component writes what the library's own generate writes."""

import copy
import random
import sys
from collections.abc import Iterator

import pytest
import torch
import transformers as t

from mstar import Int64, Model, Tensor, Text, loop, walk
from mstar.errors import LoadError
from mstar.nn.causal_lm import CausalLM
from mstar.nn.pages import OutOfPages
from mstar.nn.sampling import Sampling
from mstar.testing.parity import parity_all
from tests.nn.families import FAMILIES, SMALL, network

LENGTHS = (5, 1, 17, 30, 2, 9)
NEW = 16


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Two threads on tiny tensors wait for each other more than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def prompts():
    torch.manual_seed(1)
    return [torch.randint(3, 97, (length,)) for length in LENGTHS]


def generated(library, prompt, count=NEW):
    made = library.generate(prompt[None], max_new_tokens=count, do_sample=False, eos_token_id=-1)
    return made[0, len(prompt) :].tolist()


def component(library, **sizes):
    lm = CausalLM(lambda: copy.deepcopy(library), end=2, **({"pages": 128, "page_size": 4} | sizes))
    lm.name = "lm"
    return lm


def step(lm, tokens, caches, wishes=None):
    wishes = wishes or [Sampling()] * len(tokens)
    results = lm.ops()["next"].run(lm, {"tokens": tokens, "kv": caches, "sampling": wishes}, len(tokens))
    return [token for (token,) in results]


class Request:
    """One prompt being continued, given in pieces of the sizes that `cut` chooses."""

    def __init__(self, lm, prompt, cut):
        self.cache = lm.kv()
        self.written = []
        self.pieces = []
        while len(prompt):
            size = cut(len(prompt))
            self.pieces.append(prompt[:size])
            prompt = prompt[size:]

    def take(self):
        return self.pieces.pop(0)

    def give(self, token):
        if not self.pieces:
            self.written.append(int(token))
            self.pieces.append(token)


def serve(lm, chosen, cut):
    """All prompts, joining and pausing at random, in ragged batches of whatever is there."""
    requests = [Request(lm, prompt, cut) for prompt in prompts()]
    while waiting := [request for request in requests if len(request.written) < NEW]:
        batch = chosen.sample(waiting, chosen.randint(1, len(waiting)))
        tokens = step(lm, [request.take() for request in batch], [request.cache for request in batch])
        for request, token in zip(batch, tokens, strict=True):
            request.give(token)
        lm.store.pool.check()
    return [request.written for request in requests]


@pytest.mark.parametrize("name", FAMILIES)
def test_requests_that_join_and_leave_get_what_generate_gives(name):
    library = network(name)
    wanted = [generated(library, prompt) for prompt in prompts()]
    lm = component(library)
    chosen = random.Random(name)
    assert serve(lm, chosen, lambda left: left) == wanted
    assert serve(lm, chosen, lambda left: chosen.randint(1, left)) == wanted, "in pieces of random sizes"
    assert lm.store.pool.free_pages == 128, "all pages came back when the requests were gone"


WISHES = [
    Sampling(),
    Sampling(temperature=0.7, seed=1),
    Sampling(temperature=1.0, top_k=5, seed=2),
    Sampling(temperature=1.3, top_p=0.8, seed=3),
    Sampling(temperature=0.9, min_p=0.1, repetition_penalty=1.4, seed=4),
    Sampling(temperature=1.0, top_k=20, top_p=0.9, min_p=0.02, repetition_penalty=1.1, seed=5),
    Sampling(repetition_penalty=1.5),
]


def sampled(library, prompt, wish):
    torch.manual_seed(wish.seed)
    how = {"do_sample": False}
    if wish.temperature:
        how = {"do_sample": True, "temperature": wish.temperature, "top_k": wish.top_k, "top_p": wish.top_p}
        how |= {"min_p": wish.min_p or None}
    how["repetition_penalty"] = wish.repetition_penalty
    made = library.generate(prompt[None], max_new_tokens=NEW, eos_token_id=-1, **how)
    return made[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "gemma3"])
def test_requests_with_different_wishes_share_batches_and_get_what_generate_gives(name):
    library = network(name)
    prompt = prompts()[2]
    wanted = [sampled(library, prompt, wish) for wish in WISHES]
    assert len({tuple(tokens) for tokens in wanted}) == len(WISHES)
    lm = component(library)
    caches, given, written = [lm.kv() for _ in WISHES], [prompt] * len(WISHES), [[] for _ in WISHES]
    chosen = random.Random(name)
    while waiting := [row for row in range(len(WISHES)) if len(written[row]) < NEW]:
        batch = chosen.sample(waiting, chosen.randint(1, len(waiting)))
        tokens = step(lm, [given[r] for r in batch], [caches[r] for r in batch], [WISHES[r] for r in batch])
        for row, token in zip(batch, tokens, strict=True):
            given[row] = token
            written[row].append(int(token))
    assert written == wanted


def test_a_fork_draws_what_its_original_would():
    lm = component(network("llama"))
    wish = Sampling(temperature=1.5, seed=3)
    cache = lm.kv()
    (token,) = step(lm, [prompts()[0]], [cache], [wish])
    fork = cache.fork()
    assert step(lm, [token], [cache], [wish]) == step(lm, [token], [fork], [wish])


def test_a_fork_goes_its_own_way():
    library = network("llama")
    lm = component(library)
    base, ends = prompts()[2], prompts()[4:]
    cache = lm.kv()
    step(lm, [base], [cache])
    forks = [cache.fork() for _ in ends]
    for end, fork in zip(ends, forks, strict=True):
        (token,) = step(lm, [end], [fork])
        assert [int(token)] == generated(library, torch.cat([base, end]), 1)
    (token,) = step(lm, [ends[0]], [cache])
    assert [int(token)] == generated(library, torch.cat([base, ends[0]]), 1), "the forks left it as it was"


def test_forks_share_their_pages():
    lm = component(network("llama"), pages=10)
    cache = lm.kv()
    step(lm, [prompts()[3]], [cache])
    assert lm.store.pool.free_pages == 2
    forks = [cache.fork() for _ in range(50)]
    assert lm.store.pool.free_pages == 2
    del forks
    cache.free()
    assert lm.store.pool.free_pages == 10


def test_a_batch_that_does_not_fit_is_refused_and_changes_nothing():
    lm = component(network("llama"), pages=3)
    caches = [lm.kv(), lm.kv()]
    with pytest.raises(OutOfPages, match="4 pages of 4 are needed, 3 of 3 are free"):
        step(lm, [prompts()[1], prompts()[5]], caches)
    lm.store.pool.check()
    assert lm.store.pool.free_pages == 3
    assert [cache.history for cache in caches] == [[], []]


def test_attention_that_would_be_ignored_is_refused():
    capped = t.Gemma2ForCausalLM(t.Gemma2Config(**SMALL, head_dim=8))
    lm = component(capped)
    with pytest.raises(LoadError, match="Gemma2Attention attends with `softcap`, which is not done over pages"):
        step(lm, [prompts()[0]], [lm.kv()])


class Writer(Model):
    """The plainest language model."""

    def __init__(self):
        self.lm = component(network("llama").double())

    @walk
    def write(self, prompt: Int64[Tensor, "T"], sampling: Sampling) -> Iterator[Text]:
        kv = self.lm.kv()
        s = loop(steps=sampling.max_tokens, token=self.lm.next(prompt, kv, sampling))
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next(s.token, kv, sampling)
            s.stop_when(self.lm.is_end(s.token))


def test_a_walk_is_served_as_it_runs_with_prompts_and_tokens_in_one_batch():
    model = Writer()
    requests = [
        {"prompt": prompt, "sampling": Sampling(max_tokens=limit, temperature=limit % 2, seed=limit)}
        for prompt, limit in zip(prompts(), (9, 3, 12, 1, 7, 5), strict=True)
    ]
    parity_all(model, requests, schedules=4)
    assert model.lm.store.pool.free_pages == 128


def test_a_model_file_does_not_load_the_network():
    lm = CausalLM(lambda: pytest.fail("the network was loaded"), end=2)
    assert list(lm.ops()) == ["is_end", "next"]


def test_without_the_libraries_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mstar.nn.paged", None)
    lm = CausalLM(lambda: network("llama"), end=2)
    with pytest.raises(LoadError, match=r"needs torch and transformers[\s\S]*fix: install the torch"):
        lm.kv()
