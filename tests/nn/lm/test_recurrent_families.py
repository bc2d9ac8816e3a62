"""Networks with recurrent layers write what transformers writes, however their requests are cut, joined and moved."""

import warnings

import pytest
import torch

from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone, JobFailed
from mstar.errors import LoadError, Unsupported
from mstar.nn.compile import graph_cache
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.lm.decoder import SlowPath
from mstar.requests import Sampling
from mstar.walk.states import KV
from tests.nn.lm.concurrent_requests import ConcurrentRequests, make_component, prompts, reference_tokens
from tests.nn.lm.model_families import RECURRENT_FAMILIES, new_network

PARAMS = Sampling(max_tokens=8)
REQUESTS = [(prompt, PARAMS) for prompt in prompts(6)]


@pytest.fixture(scope="module", params=RECURRENT_FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def lm(family):
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowPath)  # everything around the recurrent layers is captured
        made = make_component(family)
        made.prepare()
    return made


@pytest.fixture(scope="module")
def expected(family):
    return [reference_tokens(family, *one) for one in REQUESTS]


def free(lm):
    store = lm.decoder.store
    return store.pool.free_pages, store.states.free_slots


@pytest.mark.parametrize("token_budget", [None, 7])
@pytest.mark.parametrize("swap_bytes", [0, 1 << 30])
def test_joined_chunked_forked_and_evicted_requests_are_those_of_generate(lm, expected, token_budget, swap_bytes):
    lm.decoder.store.swap_bytes = swap_bytes
    crowd = ConcurrentRequests(lm, 3, token_budget=token_budget)
    assert crowd.serve(REQUESTS, forks=3, evictions=0.2) == expected
    assert len(crowd.forks) == 3
    del crowd
    assert free(lm) == (256, 256)
    assert lm.decoder.store.swap_bytes == swap_bytes


def test_sampling_is_that_of_generate(family, lm):
    requests = [(prompt, Sampling(max_tokens=6, temperature=1.0, seed=row)) for row, prompt in enumerate(prompts(4))]
    assert ConcurrentRequests(lm, 5).serve(requests) == [reference_tokens(family, *one) for one in requests]


@pytest.mark.parametrize("swap_bytes", [0, 1 << 30])
def test_requests_without_a_slot_wait_outside(family, expected, swap_bytes):
    lm = make_component(family, slots=5, swap_bytes=swap_bytes)
    assert ConcurrentRequests(lm, 4, largest=2).serve(REQUESTS) == expected
    assert free(lm) == (256, 5)


def test_a_state_moves_to_another_component_and_back(family, lm, expected):
    other = make_component(family)
    (prompt, params), cache, here = REQUESTS[2], lm.kv(), lm
    token = lm.next_token(prompt, cache, params)
    written = [int(token)]
    for there in (other, lm, other):
        moved = there.load_state(KV, cache.export())
        cache.free()
        cache, here = moved, there
        for _ in range(2):
            token = here.next_token(token, cache, params)
            written.append(int(token))
    assert written == expected[2][:7]
    empty = other.load_state(KV, lm.kv().export())
    assert int(other.next_token(prompt, empty, params)) == expected[2][0]


def test_a_step_that_fails_leaves_the_state_as_it_was(lm, expected, monkeypatch):
    engine, forward = Engine(), lm.decoder._forward
    cache, (prompt, params) = engine.new_state(lm, KV), REQUESTS[3]

    def step(tokens):
        return engine.run(lm, lm.ops()["next_token"], [Job({"tokens": tokens, "kv": cache, "sampling": params})])[0]

    def fails_after(*args):
        forward(*args)
        raise RuntimeError("after the states were written")

    result, written = step(prompt), []
    for turn in range(4):
        assert isinstance(result, JobDone)
        written.append(int(result.values[0]))
        monkeypatch.setattr(lm.decoder, "_forward", fails_after)
        assert isinstance(step(torch.tensor([5 + turn])), JobFailed)
        monkeypatch.setattr(lm.decoder, "_forward", forward)
        result = step(torch.tensor(written[-1:]))
    assert written == expected[3][:4]


def test_a_fork_is_independent(lm, expected):
    (prompt, params), cache = REQUESTS[4], lm.kv()
    token = lm.next_token(prompt, cache, params)
    fork = cache.fork()
    for other in (9, 40, 71):
        lm.next_token(torch.tensor([other]), fork, params)
    written = [int(token)]
    for _ in range(3):
        token = lm.next_token(token, cache, params)
        written.append(int(token))
    assert written == expected[4][:4]


def test_equal_prompts_share_nothing(lm, expected):
    (prompt, params) = REQUESTS[2]
    for _ in range(2):
        assert int(lm.next_token(prompt, lm.kv(), params)) == expected[2][0]
    assert not lm.decoder.store.pool._cached


def test_looking_on_in_both_directions_is_refused(lm):
    with pytest.raises(Unsupported, match="recurrent layers read in one direction"):
        lm.attend_only(lm.embed(torch.tensor([5])), lm.kv())


def test_deterministic_mode_is_refused(family):
    lm = CausalLM(lambda: new_network(family), eos_token_id=2, deterministic=True)
    with pytest.raises(LoadError, match="recurrent layers, which do not run in deterministic mode"):
        lm.prepare()


def test_the_graph_cache_leaves_them_alone(family, tmp_path, monkeypatch):
    monkeypatch.setattr(graph_cache.native, "cache_directory", lambda: tmp_path)
    lm = CausalLM(lambda: new_network(family), eos_token_id=2, weights_checksum="abc")
    lm.prepare()
    assert not [*tmp_path.iterdir()]


def test_without_attention_a_long_request_needs_few_pages():
    lm = make_component("mamba2", pages=4)
    prompt, params = prompts(5)[2], Sampling(max_tokens=30)
    assert ConcurrentRequests(lm, 1, token_budget=4).serve([(prompt, params)]) == [
        reference_tokens("mamba2", prompt, params)
    ]
