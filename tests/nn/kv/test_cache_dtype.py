"""A KV cache in another dtype than its network: attention reads keys and values that were rounded to it."""

import pytest
import torch

from mstar.errors import LoadError
from mstar.nn.kv.cache_dtype import CACHE_DTYPES, to_cache_dtype
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.kv.paged_attention import attend_general, extend_caches, running
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.pretend_gpu import pretend_gpu
from tests.nn.lm import concurrent_requests
from tests.nn.lm.concurrent_requests import ConcurrentRequests
from tests.nn.lm.test_causal_lm import make_requests
from tests.nn.lm.test_device import make_component


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("name", CACHE_DTYPES)
def test_attention_reads_rounded_values(name, softcap):
    torch.manual_seed(0)
    device, counts = pretend_gpu(), [9, 1, 4]
    results = []
    for dtype in (CACHE_DTYPES[name], None):
        torch.manual_seed(1)
        store = KVStore(PagePool(32, 4), 1, swap_bytes=1 << 20, dtype=dtype)
        caches = [PagedKV(store, SamplerState()) for _ in counts]
        for step in range(3):
            new = counts if step == 0 else [1, 1, 1]
            query, key, value = (torch.randn(1, heads, sum(new), 8) for heads in (4, 2, 2))
            if dtype is None:
                key, value = (to_cache_dtype(part, CACHE_DTYPES[name]).float() for part in (key, value))
            batch = extend_caches(store, caches, new)
            batch.move(device)
            with running(batch):
                parts = (part.to(device) for part in (query, key, value))
                results.append(attend_general(*parts, 0, 0.3, 0, softcap, None).cpu())
            caches[0].evict()
            caches[0].restore()
        assert store.keys[0].dtype == store.values[0].dtype == (dtype or torch.float32)
        assert store.position_bytes == 2 * 2 * 8 * (dtype or torch.float32).itemsize
    for actual, expected in zip(results[:3], results[3:], strict=True):
        torch.testing.assert_close(actual, expected)


def test_fp8_has_a_largest_value():
    given = torch.tensor([500.0, -1e6, 1.06, float("nan")])
    rounded = to_cache_dtype(given, torch.float8_e4m3fn).float()
    assert rounded[:3].tolist() == [448.0, -448.0, 1.0]
    assert rounded[3].isnan(), "values that are not finite must be found"


@pytest.mark.parametrize("name", ["fp8", "bfloat16"])
def test_a_decoder_writes_the_same_in_any_schedule(name):
    """Chunks, forks, batches, swapping and recomputation read what was rounded when it was written."""
    requests = make_requests(6)
    lm = make_component("llama", kv_cache_dtype=name)
    alone = [ConcurrentRequests(lm, 1, largest=1).serve([request])[0] for request in requests]
    assert lm.decoder.store.keys[0].dtype == CACHE_DTYPES[name]
    assert ConcurrentRequests(lm, 2, token_budget=30).serve(requests, forks=3, evictions=0.1) == alone
    dropping = make_component("llama", kv_cache_dtype=name, swap_bytes=0)
    assert ConcurrentRequests(dropping, 4).serve(requests, evictions=0.1) == alone


def test_a_placement_sets_the_dtype():
    lm = make_component("llama")
    lm.operator_settings = {"kv_cache_dtype": "float16"}
    assert lm.decoder.store.keys[0].dtype == torch.float16
    exact = make_component("llama").decoder.store
    assert lm.decoder.store.position_bytes * 2 == exact.position_bytes


def test_kernels_of_a_cpu_read_the_dtype_of_the_network():
    with pytest.raises(
        LoadError, match=r"kernels of CPUs read a KV cache in the dtype of the network, torch.float32, not torch.float8"
    ):
        concurrent_requests.make_component("llama", kv_cache_dtype="fp8").prepare()
    concurrent_requests.make_component("llama", kv_cache_dtype="float32").prepare()
    with pytest.raises(LoadError, match=r"unknown KV cache dtype 'int4'\n  fix: use one of fp8, bfloat16"):
        concurrent_requests.make_component("llama", kv_cache_dtype="int4").prepare()
