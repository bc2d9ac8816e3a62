"""The plan of the `triton` backend goes to a device with the rest of a batch, in one copy that does not wait."""

import pytest
import torch

pytest.importorskip("triton")

from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.kv.paged_attention import AttentionView, extend_caches
from mstar.nn.lm import encoder_decoder
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.pretend_gpu import count_traffic, pretend_gpu
from mstar.nn.triton.triton_attention import PREFILL_TOKENS, TritonAttention


@pytest.mark.parametrize("counts", [[1, 1, 1], [1, 40, 7]])
def test_a_plan_is_copied_with_its_batch(counts):
    store = KVStore(PagePool(64, 4), 1, swap_bytes=0, backend=TritonAttention())
    caches = [PagedKV(store, SamplerState()) for _ in counts]
    extend_caches(store, caches, [5, 6, 17])
    batch = extend_caches(store, caches, counts)
    (plan,) = batch.plan
    host = plan.arrays
    assert plan.block_tokens == (1 if max(counts) == 1 else PREFILL_TOKENS)
    with count_traffic() as traffic:
        (last,) = batch.move(pretend_gpu(), torch.tensor([0]))
    assert (sum(traffic.to_device.values()), sum(traffic.syncs.values())) == (1, 0)
    assert batch.plan[0] is plan
    for before, after in zip(host, plan.arrays, strict=True):
        assert after.device == last.device == pretend_gpu()
        assert torch.equal(after.cpu(), before)
    page_table, seen, blocks = host
    assert page_table.tolist()[2][:5] == caches[2].table.pages[:5]
    assert seen.tolist()[-1] == caches[2].table.length
    assert blocks[:, 2].sum() == sum(counts)


def test_the_plan_of_cross_attention_is_copied():
    store = KVStore(PagePool(64, 4), 1, swap_bytes=0, backend=TritonAttention())
    caches = [PagedKV(store, SamplerState()) for _ in range(2)]
    extend_caches(store, caches, [5, 17])
    view = AttentionView(store, caches, [1, 3])
    encoder_decoder._move(view, pretend_gpu())
    (plan,) = view.plan
    assert {array.device for array in plan.arrays} == {pretend_gpu()}
    assert plan.arrays[1].tolist() == [5, 17, 17, 17], "each token sees all encoder states"
