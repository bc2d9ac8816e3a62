"""Captured decode steps on the pretend GPU: nothing is baked in, and rows of padding touch the scratch page only."""

import pytest
import torch

from mstar.nn.lm.captured_steps import BATCH_SIZES
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.pretend_gpu import count_traffic, memory_id, pretend_gpu
from mstar.requests import Sampling
from mstar.walk.batching import Layout
from mstar.walk.states import KV
from tests.nn.lm.model_families import new_network

PAGE_SIZE, PAGES = 4, 4000
FAMILIES = ("llama", "qwen3_moe", "gemma3", "mistral")
"""Plain, with experts, with sliding windows in some layers and in all layers."""


@pytest.fixture(scope="module", params=FAMILIES)
def lm(request):
    made = CausalLM(
        lambda: new_network(request.param).to(pretend_gpu()), eos_token_id=2, pages=PAGES, page_size=PAGE_SIZE
    )
    made.name = "lm"
    made.prepare()
    return made


def step(lm, tokens, caches):
    """One step by the decoder: next tokens, logits, hidden states."""
    layout = Layout(len(caches), tuple(map(len, tokens)))
    return lm.decoder.next_token_with_hidden(torch.cat(tokens), caches, [Sampling()] * len(caches), layout)


def start(lm, count):
    """Caches of requests with prompts of different lengths, and their next tokens."""
    caches = [lm.make_state(KV) for _ in range(count)]
    sampled, _, _ = step(lm, [torch.arange(3, 6 + row % 7) for row in range(count)], caches)
    return caches, [*sampled]


def free(caches):
    for cache in caches:
        cache.free()


@pytest.mark.parametrize("size", [*BATCH_SIZES[:6], pytest.param(BATCH_SIZES[-1], marks=pytest.mark.slow)])
def test_a_replayed_step_is_the_eager_one(lm, size, monkeypatch):
    """In every size, for full and for padded batches, over steps in which requests grow to their next page."""
    smallest = BATCH_SIZES[BATCH_SIZES.index(size) - 1] + 1 if size > 1 else 1
    for count in {smallest, size}:
        caches, tokens = start(lm, count)
        others = [cache.fork() for cache in caches]
        for _ in range(2 * PAGE_SIZE):
            sampled, logits, hidden = step(lm, tokens, caches)
            with monkeypatch.context() as patch:
                patch.setattr(lm.decoder, "steps", None)
                expected = step(lm, tokens, others)
            assert torch.equal(sampled, expected[0])
            assert torch.allclose(logits.cpu(), expected[1].cpu(), atol=1e-5)
            assert torch.allclose(hidden.cpu(), expected[2].cpu(), atol=1e-5)
            tokens = [*sampled]
        free((*caches, *others))
    assert any(rows == size for rows, _ in lm.decoder.steps.graphs)


def test_nothing_of_a_batch_is_baked_in(lm):
    """Beside its buffer and the pages, every graph reads the same memory: the weights."""
    for count in (2, 3, 7):
        caches, tokens = start(lm, count)
        step(lm, tokens, caches)
        free(caches)
    store, graphs = lm.decoder.store, lm.decoder.steps.graphs.values()
    assert len(graphs) > 2
    pages = {*map(memory_id, (*store.keys, *store.values))}
    weights = []
    for graph in graphs:
        own = {memory_id(graph.buffer), memory_id(graph.last)}
        inputs = {*map(memory_id, graph.graph.inputs)}
        assert inputs >= pages
        weights.append(inputs - pages - own)
    assert all(read == weights[0] for read in weights)


def test_padding_touches_only_the_scratch_page(lm):
    caches, tokens = start(lm, 5)
    store = lm.decoder.store
    (scratch,) = lm.decoder.steps._scratch.table.pages
    step(lm, tokens, caches)
    before = [memory.cpu() for memory in (*store.keys, *store.values)]
    step(lm, tokens, caches)
    written = {cache.table.pages[-1] * PAGE_SIZE + (cache.table.length - 1) % PAGE_SIZE for cache in caches}
    for memory, old in zip((*store.keys, *store.values), before, strict=True):
        changed = (memory.cpu() != old).flatten(1).any(1).nonzero().flatten().tolist()
        assert {place for place in changed if place // PAGE_SIZE != scratch} <= written
    free(caches)


def test_a_step_is_one_launch_with_one_copy(lm):
    caches, tokens = start(lm, 5)
    for _ in range(2):  # the second one has a page more, and another graph
        step(lm, tokens, caches)
    with count_traffic() as traffic:
        step(lm, tokens, caches)
    assert sum(traffic.to_device.values()) == 1, traffic.to_device
    assert sum(traffic.syncs.values()) == 1, traffic.syncs
    assert sum(traffic.kernels.values()) <= 20, "a graph, its results, and greedy sampling"
    free(caches)


def test_larger_batches_run_without_a_graph(lm, monkeypatch):
    monkeypatch.setattr("mstar.nn.lm.captured_steps.BATCH_SIZES", (1, 2))
    caches, tokens = start(lm, 3)
    before = {*lm.decoder.steps.graphs}
    step(lm, tokens, caches)
    assert {*lm.decoder.steps.graphs} == before
    free(caches)


def test_a_step_that_cannot_be_captured_runs_without_a_graph(caplog):
    network = new_network("llama").to(pretend_gpu())
    lm = CausalLM(lambda: network, eos_token_id=2, pages=PAGES, page_size=PAGE_SIZE)
    lm.name = "lm"
    lm.prepare()
    forward = lm.decoder.steps._forward

    def waiting(embeddings, positions, last):
        assert positions.max().item() >= 0
        return forward(embeddings, positions, last)

    lm.decoder.steps._forward = waiting
    caches, tokens = start(lm, 2)
    assert torch.equal(step(lm, tokens, caches)[0], step(lm, *start(lm, 2)[::-1])[0])
    assert caplog.text.count("decode steps run without graphs, which is slower: operation not permitted") == 1
    assert not lm.decoder.steps.graphs
    free(caches)
