"""Decoders with the `triton` attention backend write what generate writes, whatever happens around them."""

import dataclasses

import pytest
import torch

from mstar.errors import LoadError
from mstar.nn.kv.backend_choice import BackendChoice
from mstar.nn.lm import decoder
from mstar.nn.triton.triton_attention import TritonAttention
from mstar.walk.states import KV
from tests.nn.lm import test_seq2seq
from tests.nn.lm.concurrent_requests import ConcurrentRequests, make_component, reference_tokens
from tests.nn.lm.model_families import FAMILIES, SMALL
from tests.nn.lm.test_causal_lm import make_requests


def requests_of(count, max_tokens):
    return [(prompt, dataclasses.replace(params, max_tokens=max_tokens)) for prompt, params in make_requests(count)]


def triton_component(name, **sizes):
    lm = make_component(name, attention_backend="triton", **sizes)
    assert isinstance(lm.decoder.store.backend, TritonAttention)
    return lm


@pytest.mark.parametrize("name", ["gpt_oss", pytest.param("gemma2", marks=pytest.mark.slow)])
def test_a_few_requests(name):
    """GQA, sliding windows, sinks, a soft cap: with joins, chunked prefill, forks and evictions."""
    requests = requests_of(4, 4)
    right = [reference_tokens(name, prompt, params) for prompt, params in requests]
    lm = triton_component(name)
    assert ConcurrentRequests(lm, 2, token_budget=30).serve(requests, forks=2, evictions=0.2) == right


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name):
    requests = requests_of(6, 6)
    right = [reference_tokens(name, prompt, params) for prompt, params in requests]
    lm = triton_component(name)
    assert ConcurrentRequests(lm, 2, token_budget=30).serve(requests, forks=3, evictions=0.1) == right
    dropping = triton_component(name, swap_bytes=0)
    assert ConcurrentRequests(dropping, 4).serve(requests, evictions=0.1) == right, "dropped and computed again"


@pytest.mark.slow
def test_cross_attention_of_an_encoder_decoder(monkeypatch):
    monkeypatch.setattr(decoder, "choose_backend", lambda *_: BackendChoice(TritonAttention()))
    lm = test_seq2seq.component()
    requests = [
        (sound, start, dataclasses.replace(params, max_tokens=4)) for sound, start, params in test_seq2seq.given(5)
    ]
    right = [test_seq2seq.generated(*request) for request in requests]
    assert test_seq2seq.serve(lm, requests, 2, forks=1, leaves=0.1) == right
    assert isinstance(lm.decoder.store.backend, TritonAttention)


@pytest.mark.parametrize("name", ["fp8", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_a_cache_of_another_dtype_gives_the_tokens_of_any_schedule(name):
    requests = requests_of(4, 4)
    lm = triton_component("llama", kv_cache_dtype=name)
    alone = [ConcurrentRequests(lm, 1, largest=1).serve([request])[0] for request in requests]
    assert ConcurrentRequests(lm, 2, token_budget=30).serve(requests, forks=2, evictions=0.2) == alone


def test_attend_only_sees_all_positions():
    embeddings, prompt = torch.randn(2, 9, SMALL["hidden_size"]), torch.arange(3, 20)
    results = []
    for backend in ("triton", "torch"):
        lm = make_component("llama", attention_backend=backend)
        caches = [lm.make_state(KV), lm.make_state(KV)]
        ops = lm.ops()
        ops["hidden_states"].run(lm, {"tokens": [prompt, prompt[:5]], "kv": caches}, 2)
        rows = ops["attend_only"].run(lm, {"embeddings": [*embeddings], "kv": caches}, 2)
        results.append(torch.cat([row for (row,) in rows]))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_a_backend_that_differs_from_torch_is_refused(monkeypatch):
    attend = TritonAttention.attend
    monkeypatch.setattr(TritonAttention, "attend", lambda *given, **more: 1.01 * attend(*given, **more))
    with pytest.raises(
        LoadError, match=r"the attention backend of LlamaForCausalLM differs[\s\S]*fix: set attention_b"
    ):
        make_component("llama", attention_backend="triton").prepare()


def test_deterministic_mode_is_refused():
    with pytest.raises(LoadError, match="deterministic mode does not run with the attention backend triton"):
        make_component("llama", attention_backend="triton", deterministic=True).prepare()
