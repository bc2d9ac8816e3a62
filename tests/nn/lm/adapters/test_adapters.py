"""Adapters in one batch compute what the networks merged with them compute one by one."""

import copy
import shutil

import pytest
import torch

from mstar.errors import RowsFailed
from mstar.nn import native
from mstar.nn.compile import graph_cache, graph_capture
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.adapters import adapter_cache
from mstar.nn.lm.decoder import Decoder
from mstar.requests import Sampling
from mstar.transfer.values import pack, unpack
from mstar.walk.batching import Layout
from tests.nn.lm.adapters.peft_folders import merged, write_adapter
from tests.nn.lm.model_families import network

TOLERANCE = 1e-5
"""Of logits, relative to the largest one: in float32, merging rounds differently."""
STEPS = 6
PROMPTS = [(torch.arange(5 + 9 * row) * 7 + row) % 90 + 3 for row in range(9)]
"""Some are longer than what attention computes token by token."""


def new_decoder(net, *, is_deterministic=False, swap_bytes=0, speculative_tokens=0):
    options = {"is_deterministic": is_deterministic, "speculative_tokens": speculative_tokens}
    return Decoder(net, PagePool(256, 4), swap_bytes=swap_bytes, **options)


def greedy(adapter=None):
    return Sampling(max_tokens=2 * STEPS, adapter=adapter)


def step(decoder, caches, inputs, params):
    """Tokens and logits after the inputs of each request."""
    layout = Layout(len(caches), tuple(map(len, inputs)), frozenset())
    tokens, logits = decoder.next_token(torch.cat(inputs), caches, params, layout)
    return tokens, logits.clone()


def generate(decoder, prompts, params, steps=STEPS):
    """Tokens and logits of requests in one batch: [requests, steps] and [requests, steps, vocabulary]."""
    caches, inputs, results = [decoder.new_cache(None) for _ in prompts], prompts, []
    for _ in range(steps):
        results.append(step(decoder, caches, inputs, params))
        inputs = [*results[-1][0]]
    return torch.cat([tokens for tokens, _ in results], 1), torch.stack([logits for _, logits in results], 1)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Eight adapters of different ranks and modules."""
    folder, net = tmp_path_factory.mktemp("adapters"), network("llama")
    targets = [("q_proj", "v_proj"), ("gate_proj", "down_proj"), ("o_proj", "k_proj")]
    some = [write_adapter(folder / f"part-{n}", net, n, targets=targets[n], rank=2 + n) for n in range(3)]
    scaled = write_adapter(folder / "scaled", net, 3, use_rslora=True, rank=5)
    return [*some, scaled, *(write_adapter(folder / f"all-{n}", net, n, rank=n + 4, size=2.0) for n in range(4, 8))]


@pytest.fixture
def decoder():
    return new_decoder(copy.deepcopy(network("llama")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eight_adapters_in_one_batch_equal_merged_weights_one_by_one(adapters, dtype):
    net = copy.deepcopy(network("llama")).to(dtype)  # in float64 torch computes them, in float32 the native kernel
    assert native.is_native(dtype, torch.device("cpu")) == (dtype is torch.float32)
    shared, rows = new_decoder(copy.deepcopy(net)), [*adapters, None]
    tokens, logits = generate(shared, PROMPTS, [greedy(adapter) for adapter in rows])
    base = [generate(shared, [prompt], [greedy()])[0] for prompt in PROMPTS]
    for row, adapter in enumerate(rows):
        own = new_decoder(copy.deepcopy(net) if adapter is None else merged(net, adapter))
        expected, own_logits = generate(own, [PROMPTS[row]], [greedy()])
        assert torch.equal(tokens[row], expected[0]), adapter
        error = (logits[row] - own_logits[0]).abs().max() / own_logits.abs().max()
        assert error <= TOLERANCE
        assert (adapter is None) == torch.equal(base[row], expected), "each adapter changes the tokens"


@pytest.mark.parametrize("family", ["qwen2", "gemma3", "mistral", "phi"])
def test_families(family, tmp_path):
    net = network(family)
    names = ("q_proj", "v_proj", "dense", "fc1", "up_proj", "down_proj")
    targets = [n for n in names if any(name.endswith(f".{n}") for name, _ in net.named_modules())]
    adapter = write_adapter(tmp_path / "one", net, 1, targets=targets, size=2.0)
    tokens, _ = generate(new_decoder(copy.deepcopy(net)), PROMPTS[:3], [greedy(adapter), greedy(), greedy(adapter)])
    own, base = new_decoder(merged(net, adapter)), new_decoder(copy.deepcopy(net))
    expected = [
        generate(one, [prompt], [greedy()])[0][0] for one, prompt in zip((own, base, own), PROMPTS, strict=False)
    ]
    assert torch.equal(tokens, torch.stack(expected))


@pytest.mark.parametrize("layout", ["tiles", "onednn", "int8"])
def test_every_layout_of_packed_weights_has_adapters(adapters, layout, monkeypatch):
    net = copy.deepcopy(network("llama"))
    if layout == "onednn":  # as bfloat16 is packed on a CPU with instructions for it
        monkeypatch.setattr(native, "supports_bf16_matmul", lambda: True)
        net = net.bfloat16()
    flat, _ = graph_capture.capture(net, is_int8=layout == "int8")
    assert layout in repr(flat.constants)
    modules = {module for _, modules in flat.linears for module, _ in modules}
    assert modules == {
        name for name, module in net.named_modules() if isinstance(module, torch.nn.Linear) and name != "lm_head"
    }


def test_bfloat16_is_as_close_to_float32_as_merged_weights_are(adapters):
    net, adapter = network("llama"), adapters[5]
    exact = generate(new_decoder(merged(net, adapter)), PROMPTS[:1], [greedy()], 1)[1]
    half = copy.deepcopy(net).bfloat16()
    adapted = generate(new_decoder(copy.deepcopy(half)), PROMPTS[:1], [greedy(adapter)], 1)[1]
    error, merged_error = (
        float((logits.float() - exact).norm() / exact.norm())
        for logits in (adapted, generate(new_decoder(merged(half, adapter)), PROMPTS[:1], [greedy()], 1)[1])
    )
    assert error <= 2 * merged_error + 1e-3


def test_deterministic_mode_gives_the_bits_of_a_request_alone(adapters):
    decoder = new_decoder(copy.deepcopy(network("llama")), is_deterministic=True)
    params = [greedy(adapter) for adapter in (*adapters, None)]
    _, together = generate(decoder, PROMPTS, params, 3)
    for row, (prompt, own) in enumerate(zip(PROMPTS, params, strict=True)):
        decoder = new_decoder(copy.deepcopy(network("llama")), is_deterministic=True)
        assert torch.equal(generate(decoder, [prompt], [own], 3)[1][0], together[row])


def test_drafts_are_verified_with_the_adapter(adapters):
    prompts = [torch.arange(40) % 5 + 3 + row for row in range(len(adapters) + 1)]  # they repeat, so there are drafts
    params = [Sampling(max_tokens=40, adapter=adapter) for adapter in (*adapters, None)]
    decoder = new_decoder(copy.deepcopy(network("llama")), speculative_tokens=4)
    tokens = generate(decoder, prompts, params, 30)[0]
    assert decoder.speculation.drafted > decoder.speculation.accepted > 0
    assert torch.equal(tokens, generate(new_decoder(copy.deepcopy(network("llama"))), prompts, params, 30)[0])
    cache = decoder.new_cache(None)
    token, _ = step(decoder, [cache], prompts[:1], params[:1])
    with pytest.raises(RowsFailed, match="cannot change its adapter"):
        step(decoder, [cache], [token[0]], params[1:2])


def test_a_network_of_the_graph_cache_has_adapters(adapters, tmp_path, monkeypatch):
    monkeypatch.setattr(native, "cache_directory", lambda: tmp_path)
    expected = generate(new_decoder(copy.deepcopy(network("llama"))), PROMPTS[:1], [greedy(adapters[4])])
    load = lambda: copy.deepcopy(network("llama"))  # noqa: E731
    graph_cache.load_or_capture("x", load, is_int8=False)
    graph_cache.read_entry.cache_clear()
    cached = graph_cache.load_or_capture("x", lambda: pytest.fail("it is not cached"), is_int8=False)
    assert all(map(torch.equal, generate(new_decoder(cached), PROMPTS[:1], [greedy(adapters[4])]), expected))
    graph_cache.read_entry.cache_clear()


# ---------------------------------------------------------------- KV caches
def test_the_prefix_cache_is_shared_within_an_adapter_only(decoder, adapters):
    prompt, one, other = PROMPTS[4], greedy(adapters[4]), greedy(adapters[5])
    for params in (one, greedy(), other):
        before = decoder.store.prefix_hits
        generate(decoder, [prompt], [params])
        assert decoder.store.prefix_hits == before
    for params in (one, greedy(), other):
        before = decoder.store.prefix_hits
        again = generate(decoder, [prompt], [params])[0]
        assert decoder.store.prefix_hits == before + len(prompt) - 1
        alone = generate(new_decoder(copy.deepcopy(network("llama"))), [prompt], [params])[0]
        assert torch.equal(again, alone)


def test_equal_prompts_of_one_batch_share_no_pages_of_another_adapter(decoder, adapters):
    prompt = PROMPTS[8]
    params = [greedy(adapters[4]), greedy(), greedy(adapters[5]), greedy(adapters[4])]
    together = generate(decoder, [prompt] * 4, params)[0]
    alone = [generate(new_decoder(copy.deepcopy(network("llama"))), [prompt], [own])[0][0] for own in params]
    assert torch.equal(together, torch.stack(alone))


@pytest.mark.parametrize("moved", ["exported", "swapped", "dropped", "forked"])
def test_a_cache_keeps_its_adapter(adapters, moved):
    params = [greedy(adapters[6])]
    expected = generate(new_decoder(copy.deepcopy(network("llama"))), PROMPTS[2:3], params)[0]
    decoder = new_decoder(copy.deepcopy(network("llama")), swap_bytes=1 << 20 if moved == "swapped" else 0)
    cache = decoder.new_cache(None)
    tokens, written = step(decoder, [cache], PROMPTS[2:3], params)[0], []
    if moved == "exported":
        exported = unpack(pack(cache.export()))
        decoder = new_decoder(copy.deepcopy(network("llama")))  # which has not loaded the adapter
        cache = decoder.new_cache(None)
        cache.load(exported)
    elif moved == "forked":
        cache = cache.fork()
    else:
        cache.evict()
        decoder.restore([cache])
    for _ in range(STEPS):
        written.append(int(tokens))
        tokens, _ = step(decoder, [cache], [tokens[0]], params)
    assert written == expected[0].tolist()


def test_a_request_cannot_change_its_adapter(decoder, adapters):
    for first, second in ((adapters[0], None), (None, adapters[0]), (adapters[0], adapters[1])):
        cache = decoder.new_cache(None)
        tokens, _ = step(decoder, [cache], PROMPTS[:1], [greedy(first)])
        with pytest.raises(RowsFailed, match="cannot change its adapter"):
            step(decoder, [cache], [tokens[0]], [greedy(second)])


# ---------------------------------------------------------------- loading and unloading
def test_adapters_are_freed_unless_a_request_uses_them(adapters, tmp_path, monkeypatch):
    net = network("llama")
    decoder = new_decoder(copy.deepcopy(net))
    monkeypatch.setattr(adapter_cache, "MAX_IDLE_BYTES", 0)
    cache = decoder.new_cache(None)
    params = [greedy(adapters[4])]
    expected = generate(new_decoder(copy.deepcopy(net)), PROMPTS[:1], params)[0]
    tokens, written = step(decoder, [cache], PROMPTS[:1], params)[0], []
    for seed in range(STEPS):  # others come and go meanwhile
        written.append(int(tokens))
        other = write_adapter(tmp_path / "other", net, seed, rank=1)
        generate(decoder, PROMPTS[1:2], [greedy(other)], 1)
        assert len(decoder.adapters) == 1
        tokens, _ = step(decoder, [cache], [tokens[0]], params)
    assert written == expected[0].tolist()
    cache.free()
    del cache
    assert len(decoder.adapters) == 0


def test_changed_and_missing_files_are_reported(decoder, tmp_path):
    folder = tmp_path / "moving"
    adapter = write_adapter(folder, network("llama"), 1)
    write_adapter(folder, network("llama"), 2)
    for problem in ("have changed since it was loaded", "cannot be read"):
        with pytest.raises(RowsFailed) as raised:
            step(decoder, [decoder.new_cache(None) for _ in range(2)], PROMPTS[:2], [greedy(), greedy(adapter)])
        assert [*raised.value.errors] == [1]
        assert problem in str(raised.value)
        assert "fix: " in str(raised.value)
        shutil.rmtree(folder, ignore_errors=True)
