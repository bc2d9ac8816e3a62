"""Memory of a device: KV pages are sized from what weights and activations leave, and what does not fit is refused."""

import pytest
import torch

from mstar.config import RuntimeConfig
from mstar.errors import LoadError
from mstar.nn.device_memory import open_memory, weight_bytes
from mstar.nn.lm.causal_lm import DEFAULT_PAGES, CausalLM
from mstar.nn.memory_limits import DEFAULT_SHARE, MIN_POSITIONS, format_bytes
from mstar.nn.pretend_gpu import pretend_gpu, with_memory
from mstar.requests import Sampling
from mstar.walk.batching import Layout
from mstar.walk.states import KV
from tests.nn.lm.model_families import new_network

MB = 1_000_000
PAGE_SIZE = 4


def make_lm(memory, name="lm", network="llama", **sizes):
    lm = CausalLM(lambda: new_network(network), eos_token_id=2, page_size=PAGE_SIZE, **sizes)
    lm.name, lm.device, lm.memory = name, pretend_gpu(), memory
    return lm


def open_small(share=None, tokens=64, rows=4):
    memory = open_memory(pretend_gpu(), share, max_batched_tokens=tokens, max_batch_size=rows)
    assert memory is not None
    return memory


def load(memory, *components):
    for component in components:
        component.prepare()
    memory.allocate()


def pages(lm):
    return lm.memory_stats()["pages"]


def page_bytes(lm):
    return lm.decoder.store.position_bytes * PAGE_SIZE


def test_pages_fill_the_share_that_weights_and_activations_leave():
    with with_memory(16 * MB):
        memory = open_small(share=0.5)
        lm = make_lm(memory)
        load(memory, lm)
        weights = weight_bytes(lm._loader.load_uncached())
        assert memory.limit == 8 * MB
        assert 0.4 < pages(lm) * page_bytes(lm) / (memory.limit - weights) < 1
        assert memory.used <= memory.limit - 10_000, "activations"
        assert memory.used <= memory.limit
        assert lm.decoder.store.device == pretend_gpu()
        assert len(lm.decoder.store.keys[0]) == pages(lm) * PAGE_SIZE


def test_every_page_can_be_used_within_the_limit():
    with with_memory(MB):
        memory = open_small(share=1.0)
        lm = make_lm(memory)
        load(memory, lm)
        cache = lm.make_state(KV)
        for _ in range(pages(lm) * PAGE_SIZE // 64):  # the pretend GPU refuses what does not fit
            lm.decoder.hidden_states(torch.arange(64), [cache], _layout(64))
        assert cache.table.length > MIN_POSITIONS
        assert pages(lm) * PAGE_SIZE - cache.table.length < 64


def _layout(length):
    return Layout(1, (length,))


def test_captured_graphs_fit_beside_the_pages():
    """Sampled steps of all sizes are captured when all pages are allocated, and the pretend GPU refuses what does not
    fit."""
    with with_memory(8 * MB):
        memory = open_small(share=0.5, rows=16)
        lm = make_lm(memory)
        load(memory, lm)
        left = memory.limit - memory.used
        steps = lm.decoder.steps
        for count in (16, 1, 9, 3):
            caches = [lm.make_state(KV) for _ in range(count)]
            tokens, params = (
                torch.arange(count),
                [Sampling(temperature=1.0, top_p=0.9, seed=row) for row in range(count)],
            )
            for _ in range(2 * PAGE_SIZE):
                layout = Layout(count, (1,) * count)
                tokens = lm.decoder.next_token(tokens, caches, params, layout)[0][:, 0]
            for cache in caches:
                cache.free()
        assert {rows for rows, _, _ in steps.graphs.graphs} == {1, 4, 16}
        assert memory.used <= memory.limit
        used = left - (memory.limit - memory.used)
        assert used > 10_000, "the graphs have memory of their own"
        assert pages(lm) * page_bytes(lm) > 0.5 * memory.limit


def test_graphs_leave_fewer_pages(monkeypatch):
    counts = []
    for captures in (True, False):
        monkeypatch.setattr("mstar.nn.lm.decoder.Decoder.captures_steps", captures)
        with with_memory(16 * MB):
            memory = open_small(rows=32)
            lm = make_lm(memory)
            load(memory, lm)
            counts.append(pages(lm))
    assert counts[0] < counts[1]


def test_a_cache_in_fewer_bits_has_more_pages():
    counts = {}
    for dtype in ("float32", "bfloat16", "fp8"):
        with with_memory(16 * MB):
            memory = open_small(share=0.5)
            lm = make_lm(memory, kv_cache_dtype=dtype)
            load(memory, lm)
            counts[dtype] = pages(lm), page_bytes(lm)
            assert memory.used <= memory.limit
    assert counts["float32"][1] == 2 * counts["bfloat16"][1] == 4 * counts["fp8"][1]
    assert counts["float32"][0] < counts["bfloat16"][0] < counts["fp8"][0]


def test_larger_batches_leave_fewer_pages():
    counts = []
    for tokens in (16, 256):
        with with_memory(16 * MB):
            memory = open_small(tokens=tokens)
            lm = make_lm(memory)
            load(memory, lm)
            counts.append(pages(lm))
    assert counts[0] > counts[1] > MIN_POSITIONS // PAGE_SIZE


def test_components_share_what_the_weights_of_all_leave_in_equal_parts():
    with with_memory(16 * MB):
        memory = open_small()
        one, other, fixed = make_lm(memory, "one"), make_lm(memory, "other"), make_lm(memory, "fixed", pages=100)
        load(memory, one, other, fixed)
        assert pages(one) == pages(other) > 100
        assert pages(fixed) == 100
        total = sum(weight_bytes(lm._loader.load_uncached()) + pages(lm) * page_bytes(lm) for lm in (one, other, fixed))
        assert 0.4 < total / memory.limit < 1
        assert memory.limit == int(DEFAULT_SHARE * 16 * MB)


def test_a_sized_cache_gives_the_tokens_of_a_fixed_one():
    def generate(lm):
        cache, tokens = lm.make_state(KV), torch.arange(3, 30)
        written = []
        for _ in range(8):
            tokens = lm.decoder.next_token(tokens, [cache], [Sampling()], _layout(len(tokens)))[0][0]
            written.append(int(tokens))
        return written

    with with_memory(16 * MB):
        memory = open_small()
        lm = make_lm(memory)
        load(memory, lm)
        sized = generate(lm)
    cpu = CausalLM(lambda: new_network("llama"), eos_token_id=2, page_size=PAGE_SIZE)
    assert sized == generate(cpu)
    assert pages(cpu) == DEFAULT_PAGES


def test_weights_that_do_not_fit_are_refused_with_figures():
    size = weight_bytes(new_network("llama"))
    with with_memory(size):
        memory = open_small()
        with pytest.raises(
            LoadError, match=r"^lm needs .* for its weights on pretend:0, and has .* of the .*\n  fix: "
        ):
            make_lm(memory).prepare()
        assert memory.used == 0, "nothing was copied"


def test_a_cache_that_would_be_too_small_is_refused_with_figures():
    size = weight_bytes(new_network("llama"))
    with with_memory(4 * size):
        memory = open_small(share=0.3)
        with pytest.raises(
            LoadError,
            match=r"^\S+ kB are needed on pretend:0 for lm \(.* for weights, .*\), and \S+ kB can be used\n  fix: ",
        ):
            load(memory, make_lm(memory))
    with with_memory(int(1.2 * size)):
        memory = open_small(share=1.0)
        with pytest.raises(
            LoadError, match=r"^lm runs out of memory on pretend:0 when it is loaded: .*\n  note: .* kB\n  fix: "
        ):
            load(memory, make_lm(memory))
    with with_memory(4 * size):
        memory = open_small()
        with pytest.raises(LoadError, match="needed on pretend:0 for fixed"):
            load(memory, make_lm(memory, "fixed", pages=100_000))


def test_a_device_without_memory_figures_keeps_the_default():
    options = RuntimeConfig()
    limits = {"max_batched_tokens": options.max_batched_tokens, "max_batch_size": options.max_batch_size}
    assert open_memory(pretend_gpu(), None, **limits) is None
    assert open_memory(torch.device("cpu"), None, **limits) is None
    with pytest.raises(LoadError, match=r"memory = 0.5 is set for pretend:0, which does not report its memory\n  fix"):
        open_memory(pretend_gpu(), 0.5, **limits)
    lm = make_lm(None)
    lm.prepare()
    assert pages(lm) == DEFAULT_PAGES


def test_memory_of_other_processes_is_not_used():
    with with_memory(16 * MB):
        taken = torch.zeros(10 * MB // 4, device=pretend_gpu())
        assert open_small().limit == 6 * MB
        del taken
        assert open_small().limit == int(DEFAULT_SHARE * 16 * MB)


def test_the_pretend_gpu_counts_views_once_and_refuses_what_does_not_fit():
    module = torch.get_device_module(pretend_gpu())
    with with_memory(MB):
        before = module.memory_allocated()
        tensor = torch.zeros(1000, device=pretend_gpu())
        views = [tensor[1:], tensor.view(10, 100)]
        assert module.memory_allocated() - before == 4000
        module.reset_peak_memory_stats()
        _ = (tensor + 1) * 2
        del tensor
        assert module.memory_allocated() - before >= 4000
        del views, _
        assert module.memory_allocated() == before
        assert module.max_memory_allocated() - before >= 12_000
        with pytest.raises(torch.OutOfMemoryError, match="pretend:0 out of memory"):
            torch.zeros(MB, device=pretend_gpu())


def test_sizes_are_printed_in_decimal_units():
    assert [format_bytes(n) for n in (12, 4000, 16.06e9, 1.2e6)] == ["12 bytes", "4 kB", "16.1 GB", "1.2 MB"]


def test_the_limit_is_a_share_of_the_device():
    with with_memory(100 * MB):
        assert open_small(0.5).share == 0.5
        taken = torch.empty(60 * MB, dtype=torch.uint8, device=pretend_gpu())
        assert open_small(0.5).share == pytest.approx(0.4), "what is free, as another process has the rest"
        del taken
