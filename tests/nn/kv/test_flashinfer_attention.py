"""The `flashinfer` backend on the pretend GPU, with a stand-in for FlashInfer that has its signatures."""

import ast
import dataclasses
import importlib
import inspect
import logging
import sys

import pytest
import torch

from mstar.errors import LoadError
from mstar.nn.kv import backend_choice
from mstar.nn.kv.backend_choice import BackendChoice
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.kv.paged_attention import AttentionView, attend_general, attend_pages, extend_caches, running
from mstar.nn.kv.torch_attention import TORCH_ATTENTION
from mstar.nn.lm import decoder as decoder_module
from mstar.nn.lm import encoder_decoder
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.pretend_gpu import count_traffic, memory_id, pretend_gpu
from mstar.walk.states import KV
from tests.nn.kv import flashinfer_stand_in
from tests.nn.lm.concurrent_requests import ConcurrentRequests, reference_tokens
from tests.nn.lm.device_steps.test_captured_steps import free, start, step
from tests.nn.lm.model_families import SMALL, new_network
from tests.nn.lm.test_causal_lm import make_requests

MODULE = "mstar.nn.kv.flashinfer_attention"


@pytest.fixture(autouse=True)
def flashinfer(monkeypatch):
    """The module of the backend, with the stand-in instead of FlashInfer."""
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer_stand_in)
    sys.modules.pop(MODULE, None)
    module = importlib.import_module(MODULE)
    monkeypatch.setattr(module, "WORKSPACE_BYTES", 1 << 20)
    yield module
    sys.modules.pop(MODULE, None)


@pytest.fixture
def any_size(flashinfer, monkeypatch):
    """The stand-in computes in float32 and with small heads too: its tokens can be compared with those of generate."""
    for module in (flashinfer, flashinfer_stand_in._Wrapper):
        monkeypatch.setattr(module, "DTYPES", (torch.float32, torch.bfloat16))
        monkeypatch.setattr(module, "HEAD_SIZES", (8, 16))


def make_component(name, backend="flashinfer", **sizes):
    sizes = {"pages": 256, "page_size": 4} | sizes
    lm = CausalLM(lambda: new_network(name).to(pretend_gpu()), eos_token_id=2, attention_backend=backend, **sizes)
    lm.name = "lm"
    return lm


# ---------------------------------------------------------------- decoders
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gemma3"])
def test_a_decoder_writes_what_generate_writes(name, any_size, flashinfer):
    """GQA; a sliding window in all layers, whose pages are released; a soft cap; windows in some layers.

    Requests join, are prefilled in chunks, forked and swapped out; decode steps are captured as graphs.
    """
    requests = [(prompt, dataclasses.replace(params, max_tokens=5)) for prompt, params in make_requests(6)]
    right = [reference_tokens(name, prompt, params) for prompt, params in requests]
    lm = make_component(name)
    assert isinstance(lm.decoder.store.backend, flashinfer.FlashInferAttention)
    assert ConcurrentRequests(lm, 2, token_budget=30).serve(requests, forks=3, evictions=0.1) == right
    assert lm.decoder.steps.graphs.graphs


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_attend_only_sees_all_positions(name, any_size, flashinfer):
    """With windows by the fallback: FlashInfer counts them from the position of the token."""
    embeddings, prompt = torch.randn(2, 9, SMALL["hidden_size"]), torch.arange(3, 20)
    results = []
    for backend in ("flashinfer", "torch"):
        lm = make_component(name, backend)
        caches, ops = [lm.make_state(KV), lm.make_state(KV)], lm.ops()
        ops["hidden_states"].run(lm, {"tokens": [prompt, prompt[:5]], "kv": caches}, 2)
        given = [part.to(pretend_gpu()) for part in embeddings]
        rows = ops["attend_only"].run(lm, {"embeddings": given, "kv": caches}, 2)
        results.append(torch.cat([row.cpu() for (row,) in rows]))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_a_captured_step_plans_before_it_replays(any_size):
    """Every graph reads the fixed buffers of its wrappers; a step is planned once for each rule of its layers."""
    lm = make_component("gemma3")
    caches, tokens = start(lm, 3)
    step(lm, tokens, caches)
    backend, graphs = lm.decoder.store.backend, lm.decoder.steps.graphs.graphs
    (rows, pages, _), graph = next(iter(graphs.items()))
    wrappers = [one._wrapper for key, one in backend._graph_wrappers.items() if key[:2] == (rows, rows * pages)]
    assert len(wrappers) == len(backend._rules) == 2, "with and without a window"
    inputs = {memory_id(tensor) for tensor in graph.graph.inputs}
    assert inputs >= {memory_id(buffer) for wrapper in wrappers for buffer in wrapper._buffers}
    before = flashinfer_stand_in.BatchDecodeWithPagedKVCacheWrapper.plans
    with count_traffic() as traffic:
        step(lm, tokens, caches)
    assert flashinfer_stand_in.BatchDecodeWithPagedKVCacheWrapper.plans == before + 2
    assert sum(traffic.to_device.values()) <= 1 + 2 * 2, "the batch, and two arrays of each plan"
    assert sum(traffic.syncs.values()) == 1, traffic.syncs
    free(caches)


def test_wrappers_are_dropped_with_their_graphs(any_size, monkeypatch):
    """Each has a megabyte of pinned memory."""
    monkeypatch.setattr("mstar.nn.device_graphs.MAX_GRAPHS", 2)
    lm = make_component("gemma3")
    for count in (1, 2, 4, 8, 1):
        caches, tokens = start(lm, count)
        step(lm, tokens, caches)
        backend, graphs = lm.decoder.store.backend, lm.decoder.steps.graphs.graphs
        assert {key[:2] for key in backend._graph_wrappers} == {(rows, rows * pages) for rows, pages, _ in graphs}
        free(caches)


def test_a_plan_that_fails_leaves_steps_without_graphs(any_size, flashinfer, monkeypatch, caplog):
    lm = make_component("llama")
    lm.prepare()

    def fail(*_):
        raise RuntimeError("Buffer overflow when allocating memory for batch_prefill_tmp_v")

    monkeypatch.setattr(flashinfer.FlashInferAttention, "prepare_graph", fail)
    caches, tokens = start(lm, 2)
    step(lm, tokens, caches)
    assert "decode steps run without graphs, which is slower: Buffer overflow" in caplog.text
    free(caches)


# ---------------------------------------------------------------- one layer
@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_layer_equals_torch(dtype, cache_dtype, flashinfer):
    """In the dtypes and with the head sizes that FlashInfer has, over forked pages."""
    torch.manual_seed(0)
    device = pretend_gpu()
    stores = [
        KVStore(PagePool(64, 16), 1, swap_bytes=0, backend=backend, dtype=cache_dtype)
        for backend in (flashinfer.FlashInferAttention(device, TORCH_ATTENTION), TORCH_ATTENTION)
    ]
    caches = [[PagedKV(store, SamplerState()) for _ in range(3)] for store in stores]
    for counts, window, softcap in (
        ([5, 40, 17], 0, 0.0),
        ([1, 1, 1], 0, 3.0),
        ([3, 1, 20], 9, 0.0),
        ([1, 1, 1], 9, 0.0),
    ):
        parts = [torch.randn(1, heads, sum(counts), 64).to(device, dtype) for heads in (8, 2, 2)]
        results = []
        for store, own in zip(stores, caches, strict=True):
            batch = extend_caches(store, own, counts)
            batch.move(device)
            with running(batch):
                results.append(attend_general(*parts, 0, 0.1, window, softcap, None).float().cpu())
        torch.testing.assert_close(*results, rtol=2e-2, atol=2e-2)
        for own in caches:
            own[2].free()
            own[2] = own[1].fork()
    assert stores[0].keys[0].dtype == (cache_dtype or dtype)
    assert torch.equal(stores[0].keys[0].cpu().view(torch.uint8), stores[1].keys[0].cpu().view(torch.uint8))


def test_cross_attention_sees_all_positions(flashinfer):
    torch.manual_seed(0)
    device, results = pretend_gpu(), []
    keys, query = (
        torch.randn(1, 2, 22, 64).to(device, torch.bfloat16),
        torch.randn(1, 4, 4, 64).to(device, torch.bfloat16),
    )
    for backend in (flashinfer.FlashInferAttention(device, TORCH_ATTENTION), TORCH_ATTENTION):
        store = KVStore(PagePool(64, 4), 1, swap_bytes=0, backend=backend)
        caches = [PagedKV(store, SamplerState()) for _ in range(2)]
        batch = extend_caches(store, caches, [5, 17])
        batch.move(device)
        backend.write(batch, keys, keys, 0)
        view = AttentionView(store, caches, [1, 3])
        encoder_decoder._move(view, device)
        results.append(attend_pages(view, query, 0, 0.1, 0).float().cpu())
    torch.testing.assert_close(*results, rtol=2e-2, atol=2e-2)


# ---------------------------------------------------------------- choice
def test_layers_that_it_does_not_have_are_refused_with_the_reason(any_size):
    with pytest.raises(LoadError, match=r"backend flashinfer does not support attention sinks\n  fix: set attention_b"):
        make_component("gpt_oss").prepare()


def test_head_sizes_and_dtypes_that_it_does_not_have_are_refused(flashinfer):
    with pytest.raises(LoadError, match=r"flashinfer does not support torch.float32\n  fix: load the network in"):
        make_component("llama").prepare()
    lm = CausalLM(
        lambda: new_network("llama").to(pretend_gpu(), torch.bfloat16), eos_token_id=2, attention_backend="flashinfer"
    )
    with pytest.raises(LoadError, match="flashinfer does not support heads of size 8"):
        lm.prepare()
    with pytest.raises(LoadError, match="flashinfer does not run on cpu"):
        backend_choice.choose_backend("flashinfer", torch.bfloat16, torch.device("cpu"))
    with pytest.raises(LoadError, match=r"does not support torch.bfloat16 with a KV cache in torch.float32"):
        backend_choice.choose_backend("flashinfer", torch.bfloat16, pretend_gpu(), torch.float32)


def test_without_a_name_the_next_backend_is_taken_and_the_log_says_why(any_size, flashinfer, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "mstar.worker")
    first = BackendChoice(flashinfer.FlashInferAttention(pretend_gpu(), TORCH_ATTENTION), fallback=TORCH_ATTENTION)
    monkeypatch.setattr(decoder_module, "choose_backend", lambda *_: first)
    lm = make_component("gpt_oss", None)
    lm.prepare()
    assert lm.decoder.store.backend is TORCH_ATTENTION
    assert "lm: attention backend torch, because flashinfer does not support attention sinks" in caplog.text
    make_component("llama", None).prepare()
    assert "lm: attention backend flashinfer\n" in caplog.text


# ---------------------------------------------------------------- signatures
def test_every_function_that_is_called_is_in_the_table(flashinfer):
    """The stand-in binds each call by the table, which has the signatures of a wheel."""
    tree = ast.parse(inspect.getsource(flashinfer))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_flashinfer(node.value)}
    known = {name.partition(".")[0] for name in flashinfer_stand_in.SIGNATURES}
    assert used == known == {name for name in known if hasattr(flashinfer_stand_in, name)}


def _is_flashinfer(node):
    return isinstance(node, ast.Name) and node.id == "flashinfer"


def test_a_wrong_argument_is_found():
    for name, wrong in (("append_paged_kv_cache", "layout"), ("BatchPrefillWithPagedKVCacheWrapper.plan", "window")):
        with pytest.raises(TypeError, match=r"missing a required argument|unexpected keyword"):
            flashinfer_stand_in.bind(name, **{wrong: 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'causal'"):
        flashinfer_stand_in.bind("BatchDecodeWithPagedKVCacheWrapper._plan_impl", *range(8), causal=True)
