"""Captured decode steps on the pretend GPU: nothing is baked in, and rows of padding touch the scratch page only."""

from dataclasses import replace

import pytest
import torch

from mstar.errors import NotFinite, RowsFailed
from mstar.nn.device_graphs import MAX_ROWS
from mstar.nn.kv.backend_choice import BackendChoice
from mstar.nn.kv.torch_attention import TorchAttention
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.pretend_gpu import count_traffic, memory_id, pretend_gpu
from mstar.requests import BadSampling, Sampling
from mstar.walk.batching import Layout
from mstar.walk.states import KV
from tests.nn.lm.model_families import new_network

PAGE_SIZE, PAGES = 4, 4000
FAMILIES = ("llama", "qwen3_moe", "gemma3", "mistral")
"""Plain, with experts, with sliding windows in some layers and in all layers."""
MIXED = [
    Sampling(),
    Sampling(temperature=0.8, top_k=20, seed=1),
    Sampling(temperature=1.3, top_p=0.9, seed=2),
    Sampling(temperature=1.0, min_p=0.05, seed=3),
    Sampling(temperature=1.0, top_k=30, top_p=0.95, repetition_penalty=1.3, logit_bias=((5, 2.0), (5, 1.0)), seed=4),
    Sampling(frequency_penalty=1.5, presence_penalty=0.5, logit_bias=((0, -3.0),)),
]
GREEDY = (Sampling(),)
KINDS = {"greedy": GREEDY, "drawn": MIXED[:4], "mixed": MIXED}


@pytest.fixture(scope="module", params=FAMILIES)
def lm(request):
    made = CausalLM(
        lambda: new_network(request.param).to(pretend_gpu()), eos_token_id=2, pages=PAGES, page_size=PAGE_SIZE
    )
    made.name = "lm"
    made.prepare()
    return made


def step(lm, tokens, caches, params=GREEDY):
    """One step by the decoder: next tokens, logits, hidden states. The parameters are repeated for all rows."""
    layout = Layout(len(caches), tuple(map(len, tokens)))
    params = [params[row % len(params)] for row in range(len(caches))]
    return lm.decoder.next_token_with_hidden(torch.cat(tokens), caches, params, layout)


def eager_step(lm, *given):
    """The same without graphs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm.decoder, "steps", None)
        return step(lm, *given)


def graphs_of(lm):
    return lm.decoder.steps.graphs.graphs


def start(lm, count, params=GREEDY):
    """Caches of requests with prompts of different lengths, and their next tokens."""
    caches = [lm.make_state(KV) for _ in range(count)]
    sampled, _, _ = step(lm, [torch.arange(3, 6 + row % 7) for row in range(count)], caches, params)
    return caches, [*sampled]


def free(caches):
    for cache in caches:
        cache.free()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, pytest.param(MAX_ROWS, marks=pytest.mark.nightly)])
def test_a_replayed_step_is_the_eager_one(lm, size, kind):
    """In every size, for full and for padded batches, over steps in which requests grow to their next page."""
    params = KINDS[kind]
    for count in {size // 2 + 1, size}:
        caches, tokens = start(lm, count, params)
        others = [cache.fork() for cache in caches]
        for _ in range(2 * PAGE_SIZE):
            sampled, logits, hidden = step(lm, tokens, caches, params)
            expected = eager_step(lm, tokens, others, params)
            assert torch.equal(sampled, expected[0])
            assert torch.allclose(logits.cpu(), expected[1].cpu(), atol=1e-5)
            assert torch.allclose(hidden.cpu(), expected[2].cpu(), atol=1e-5)
            tokens = [*sampled]
        free((*caches, *others))
    assert any(rows == size for rows, _, _ in graphs_of(lm))


def test_nothing_of_a_batch_is_baked_in(lm):
    """Beside its buffer, its results and the pages, every graph reads the same memory: the weights."""
    for count in (2, 3, 7):
        for params in KINDS.values():
            caches, tokens = start(lm, count, params)
            step(lm, tokens, caches, params)
            free(caches)
    store, steps = lm.decoder.store, lm.decoder.steps
    assert len({entries for _, _, entries in graphs_of(lm)}) > 2
    pages = {*map(memory_id, (*store.keys, *store.values))}
    weights = []
    for (rows, _, _), graph in graphs_of(lm).items():
        own = {memory_id(graph.buffer), *map(memory_id, steps.outputs[rows])}
        inputs = {*map(memory_id, graph.graph.inputs)}
        assert inputs >= pages
        weights.append(inputs - pages - own)
    assert all(read == weights[0] for read in weights)


def test_parameters_can_change_between_replays(lm):
    """One graph draws with every temperature, bound, penalty and seed."""
    base = Sampling(temperature=1.0, logit_bias=((7, 0.5),))
    changes = [{"temperature": 3.0}, {"top_k": 1}, {"top_p": 0.01}, {"min_p": 0.99}, {"seed": 9}]
    changes += [{"repetition_penalty": 5.0}, {"logit_bias": ((11, 100.0),)}, {"presence_penalty": 2.0}]
    (cache,), tokens = start(lm, 1)
    step(lm, tokens, [cache.fork()], [base])
    before, chosen = [*graphs_of(lm)], set()
    for change in ({}, *changes):
        for seed in (0, 1):
            params = replace(base, seed=seed, **{name: value for name, value in change.items() if name != "seed"})
            sampled, *_ = step(lm, tokens, [cache.fork()], [params])
            assert torch.equal(sampled, eager_step(lm, tokens, [cache.fork()], [params])[0])
            chosen.add(int(sampled))
    assert sorted(graphs_of(lm)) == sorted(before)
    assert len(chosen) > 3
    assert 11 in chosen
    free([cache])


@pytest.mark.parametrize("name", ["grammar or ranges", "many penalties"])
def test_what_a_graph_cannot_hold_is_sampled_from_its_logits(lm, name, monkeypatch):
    params = [*MIXED, Sampling(temperature=1.0, allowed_ranges=((3, 20),))]
    if name == "many penalties":
        params = MIXED
        monkeypatch.setattr("mstar.nn.lm.device_steps.captured_sampling.ENTRY_COUNTS", (0, 1))
    caches, tokens = start(lm, len(params), params)
    others = [cache.fork() for cache in caches]
    with count_traffic() as traffic:
        sampled, *_ = step(lm, tokens, caches, params)
    assert torch.equal(sampled, eager_step(lm, tokens, others, params)[0])
    assert any("device_graphs" in line for line in traffic.kernels), "the network runs as a graph"
    free((*caches, *others))


def test_rows_that_fail_are_reported(lm):
    caches, tokens = start(lm, 3)
    nothing = Sampling(logit_bias=tuple((token, -3e38) for token in range(lm.decoder.steps._size)) * 2)
    params = [Sampling(), nothing, Sampling(temperature=1.0)]
    for run in (step, eager_step):
        forks = [cache.fork() for cache in caches]
        with pytest.raises(RowsFailed) as failed:
            run(lm, tokens, forks, params)
        assert {row: type(error) for row, error in failed.value.errors.items()} == {1: BadSampling}
        free(forks)
    keys = lm.decoder.store.keys[0]
    page = caches[2].table.pages[0] * PAGE_SIZE
    before = keys[page].clone()
    keys[page] = torch.nan
    with pytest.raises(RowsFailed) as failed:
        step(lm, tokens, caches, MIXED[:3])
    assert {row: type(error) for row, error in failed.value.errors.items()} == {2: NotFinite}
    keys[page] = before
    free(caches)


def test_a_random_draw_is_counted_once(lm):
    """Also in a step that cannot be captured, and runs again without a graph."""
    (cache,), tokens = start(lm, 1)
    params = [Sampling(temperature=1.0)]
    before = cache.sampler.export().draws
    step(lm, tokens, [cache], params)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm.decoder.steps.graphs, "graphs", type(graphs_of(lm))())
        patch.setattr(lm.decoder.steps.graphs, "_is_refused", True)
        step(lm, tokens, [cache], params)
    assert cache.sampler.export().draws == before + 2
    free([cache])


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_one_launch_with_one_copy(lm, kind):
    caches, tokens = start(lm, 5, KINDS[kind])
    params = [KINDS[kind][row % len(KINDS[kind])] for row in range(5)]
    layout = Layout(5, (1,) * 5)
    for _ in range(3):  # the second one has a page more, and another graph
        with count_traffic() as traffic:
            sampled, _ = lm.decoder.next_token(torch.cat(tokens), caches, params, layout)
        tokens = [*sampled]
    assert sum(traffic.to_device.values()) == 1, traffic.to_device
    assert sum(traffic.to_host.values()) == 1, traffic.to_host
    assert sum(traffic.syncs.values()) == 1, traffic.syncs
    launches = [line for line in traffic.kernels.elements() if "captured_steps" not in line]  # those are views
    assert len(launches) == 2, "the copy and the graph"
    free(caches)


def test_larger_batches_run_without_a_graph(lm, monkeypatch):
    monkeypatch.setattr(lm.decoder.steps, "max_rows", 2)
    caches, tokens = start(lm, 3)
    before = {*graphs_of(lm)}
    step(lm, tokens, caches)
    assert {*graphs_of(lm)} == before
    free(caches)


def test_attention_that_gathers_pages_has_a_limit(lm, monkeypatch):
    """Requests of very different lengths are gathered with padding, which must not be larger than the KV cache."""
    caches, tokens = start(lm, 3)
    graphs = lm.decoder.steps.graphs
    monkeypatch.setattr(graphs, "graphs", type(graphs.graphs)())
    for count in (7, 8):
        monkeypatch.setattr(lm.decoder.store.pool, "count", count)
        step(lm, tokens, caches)
        assert len(graphs_of(lm)) == count - 7
    free(caches)


def test_a_kernel_for_long_requests_is_compiled_before_the_first_request():
    class Splitting(TorchAttention):
        split_positions = 40
        seen = ()

        def plan(self, view):
            self.seen += (view.min_positions,)
            return super().plan(view)

    backend = Splitting()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mstar.nn.lm.decoder.choose_backend", lambda *_: BackendChoice(backend))
        made = CausalLM(lambda: new_network("llama").to(pretend_gpu()), eos_token_id=2, pages=PAGES, page_size=4)
        made.name = "lm"
        made.prepare()
    assert backend.seen[-1] == 64


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
    caches, tokens = start(lm, 2, MIXED[1:3])
    others = [cache.fork() for cache in caches]
    for _ in range(2):
        sampled, *_ = step(lm, tokens, caches, MIXED[1:3])
        assert torch.equal(sampled, eager_step(lm, tokens, others, MIXED[1:3])[0])
        tokens = [*sampled]
    assert caplog.text.count("decode steps run without graphs, which is slower: operation not permitted") == 1
    assert not graphs_of(lm)
    free((*caches, *others))
