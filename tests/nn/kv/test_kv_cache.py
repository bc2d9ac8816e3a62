"""The lineage of a KV cache: the inputs that recompute it."""

import pytest
import torch

from tests.nn.lm.concurrent_requests import make_component


@pytest.fixture
def cache():
    return make_component("llama", page_size=4).kv()


def test_the_lineage_is_tokens_and_embeddings_in_order(cache):
    image = torch.ones(2, 8)
    cache.sampler.append_tokens([1, 2])
    cache.append_embeddings(image)
    cache.sampler.append_tokens([3])
    first, second, third = cache.lineage()
    assert (first.tolist(), third.tolist()) == ([1, 2], [3])
    assert second is image


def test_a_rollback_removes_the_embeddings_since_the_snapshot(cache):
    image = torch.ones(2, 8)
    cache.append_embeddings(image)
    snapshot = cache.snapshot()
    cache.append_embeddings(torch.zeros(3, 8))
    cache.rollback(snapshot)
    assert [part for part in cache.lineage() if part.is_floating_point()] == [image]
