"""A transformers decoder as a component writes what the library's own generate writes."""

import copy
import random
from collections.abc import Iterator

import pytest
import torch

from mstar import Int64, Model, Tensor, Text, loop, walk
from mstar.nn.causal_lm import CausalLM
from mstar.nn.pages import OutOfPages
from mstar.testing.parity import parity_all
from tests.nn.families import FAMILIES, network

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


def step(lm, tokens, caches):
    results = lm.ops()["next"].run(lm, {"tokens": tokens, "kv": caches}, len(tokens))
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


def test_too_long_a_prompt_is_refused_and_changes_nothing():
    lm = component(network("llama"), pages=2)
    cache = lm.kv()
    with pytest.raises(OutOfPages, match="3 pages of 4 are needed, 2 of 2 are free"):
        step(lm, [prompts()[5]], [cache])
    lm.store.pool.check()
    assert lm.store.pool.free_pages == 2


class Writer(Model):
    """The plainest language model."""

    def __init__(self):
        self.lm = component(network("llama").double())

    @walk
    def write(self, prompt: Int64[Tensor, "T"], limit: int) -> Iterator[Text]:
        kv = self.lm.kv()
        s = loop(steps=limit, token=self.lm.next(prompt, kv))
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next(s.token, kv)
            s.stop_when(self.lm.is_end(s.token))


def test_a_walk_is_served_as_it_runs_with_prompts_and_tokens_in_one_batch():
    model = Writer()
    requests = [
        {"prompt": prompt, "limit": limit} for prompt, limit in zip(prompts(), (9, 3, 12, 1, 7, 5), strict=True)
    ]
    parity_all(model, requests, schedules=4)
    assert model.lm.store.pool.free_pages == 128


def test_a_model_file_does_not_load_the_network():
    lm = CausalLM(lambda: pytest.fail("the network was loaded"), end=2)
    assert list(lm.ops()) == ["is_end", "next"]
