"""A recorded network gives what the library's own code gives, with nothing left that could have been fused."""

from collections import Counter

import pytest
import torch
import transformers as t

from mstar.nn import native
from mstar.nn.compile.graph_capture import eager_forward, flatten
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.kv.paged_attention import PAGED_ATTENTION, extend_caches, running
from mstar.nn.lm.sampler_state import SamplerState
from tests.nn.lm.model_families import FAMILIES, SMALL


def forward(run, network, count):
    """Some tokens of two requests, through fresh pages."""
    store = KVStore(PagePool(64, 4), network.config.num_hidden_layers, swap_bytes=0)
    caches = [PagedKV(store, SamplerState()) for _ in range(2)]
    torch.manual_seed(3)
    embeddings = torch.randn(1, 2 * count, network.config.hidden_size, dtype=network.dtype)
    batch = extend_caches(store, caches, [count, count])
    with torch.inference_mode(), running(batch):
        return run(embeddings, batch.positions[None], torch.tensor([count - 1, 2 * count - 1]))


def made(name, dtype):
    torch.manual_seed(0)
    network = FAMILIES[name]().to(dtype).eval().requires_grad_(requires_grad=False)
    network.config._attn_implementation = PAGED_ATTENTION
    return network


@pytest.mark.parametrize("name", ["llama", pytest.param("phi", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("count", [1, 5, 60])
def test_it_gives_what_the_library_gives(name, count):
    network = made(name, torch.float32)
    right = forward(eager_forward(network), network, count)
    for one, wanted in zip(forward(flatten(network)[0], network, count), right, strict=True):
        torch.testing.assert_close(one, wanted, atol=1e-4, rtol=1e-4)


def test_in_bf16_its_bits_are_those_of_the_librarys_layers():
    network = made("llama", torch.bfloat16)
    right = forward(eager_forward(network), network, 3)
    for one, wanted in zip(forward(flatten(network)[0], network, 3), right, strict=True):
        assert torch.equal(one, wanted)


@pytest.fixture(params=[True, False], ids=["bf16", "no bf16"])
def product(request, monkeypatch):
    """What multiplies bf16 on processors that have instructions for it, and on those that have not."""
    monkeypatch.setattr(native, "supports_bf16_matmul", lambda: request.param)
    return "_linear_pointwise" if request.param else "linear"


def test_both_products_of_bf16_give_the_same(monkeypatch):
    results = []
    for has_bf16 in (True, False):
        monkeypatch.setattr(native, "supports_bf16_matmul", lambda has_bf16=has_bf16: has_bf16)
        network = made("llama", torch.bfloat16)
        results.append(forward(flatten(network)[0], network, 3)[0].float())
    assert (results[0] - results[1]).abs().max() < 0.02 * results[0].abs().max()


def test_nothing_of_a_llama_is_left_unfused(product):
    network = made("llama", torch.bfloat16)
    calls = Counter(_name(node) for node in flatten(network)[0].__self__.graph.nodes if node.op == "call_function")
    layers = SMALL["num_hidden_layers"]
    in_layers = {"add_norm": 2, product: 4, "adapt_linear": 4, "attend_fused_qkv": 1, "silu_mul": 1}
    assert {name: calls[name] for name in in_layers} == {
        name: count * layers + (name == product) for name, count in in_layers.items()
    }
    angles = {"unsqueeze", "to", "mul", "cat", "cos", "sin"}
    assert calls.keys() - in_layers.keys() <= {"rms_norm", "index", "select", "getitem", "in_whole_vectors", *angles}
    assert all(calls[name] <= 4 for name in angles)


def _name(node):
    return getattr(node.target, "__name__", str(node.target)).removesuffix(".default").split(".")[0]


def test_weights_that_were_packed_are_let_go(product):
    config = t.LlamaConfig(**SMALL, tie_word_embeddings=False)
    network = t.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    network.config._attn_implementation = PAGED_ATTENTION
    packed = flatten(network)[0].__self__
    held = [value for value in vars(packed).values() if isinstance(value, torch.Tensor)]
    plain = {value.data_ptr() for value in held if not value.is_mkldnn}
    is_packed = (lambda value: value.is_mkldnn) if product == "_linear_pointwise" else (lambda value: value.ndim == 3)
    assert sum(map(is_packed, held)) == 4 * SMALL["num_hidden_layers"] + 1
    gone = [name for name, weight in network.named_parameters() if weight.ndim == 2 and weight.data_ptr() in plain]
    assert gone == []
    assert list(packed.parameters()) == []
