"""A network that chunks or batches would change is refused when it is loaded, with its family and the reason."""

import copy
import warnings

import pytest
import torch
import transformers as t

from mstar.errors import LoadError
from mstar.nn.compile import graph_cache, graph_capture
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.lm.decoder import Decoder, SlowPath
from mstar.nn.lm.library_decoder import LibraryDecoder
from tests.nn.lm.model_families import FAMILIES, SMALL, new_network

TINY = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2}
GPT = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8}
UNPAGED = {
    "rwkv": lambda: t.RwkvForCausalLM(t.RwkvConfig(**TINY, context_length=64)),
    "recurrent_gemma": lambda: t.RecurrentGemmaForCausalLM(
        t.RecurrentGemmaConfig(
            **SMALL, head_dim=8, attention_window_size=8, block_types=["recurrent", "attention"], lru_width=32
        )
    ),
    "minimax": lambda: t.MiniMaxForCausalLM(
        t.MiniMaxConfig(**SMALL, head_dim=8, num_local_experts=2, layer_types=["linear_attention", "full_attention"])
    ),
    "xlstm": lambda: t.xLSTMForCausalLM(t.xLSTMConfig(**TINY, num_heads=4)),
    "bloom": lambda: t.BloomForCausalLM(t.BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4)),
    "gptj": lambda: t.GPTJForCausalLM(t.GPTJConfig(**GPT)),
}
"""Recurrent families with a memory of their own, and families with an attention of their own."""


def make_unpaged(family, dtype=torch.float32):
    torch.manual_seed(0)
    network = UNPAGED[family]().eval()
    for weight in network.parameters():
        if weight.ndim == 2:
            weight.data.mul_(4)
    return network.to(dtype)


def make_decoder(network):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPath)
        return Decoder(network, PagePool(32, 4), swap_bytes=0, is_deterministic=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", UNPAGED)
def test_a_family_that_chunks_change_is_refused(family, dtype, monkeypatch):
    monkeypatch.setattr(graph_capture, "flatten", not_captured)  # the check is the same, and a test faster
    network = make_unpaged(family, dtype)
    reason = r"12 tokens at once differ from 8 \+ 4 tokens: relative difference \de[+-]\d\d, limit \de-\d\d\n  fix: "
    with pytest.raises(LoadError, match=f"{type(network).__name__} cannot be served: {reason}"):
        make_decoder(network)


def not_captured(*_args, **_kwargs):
    raise RuntimeError("cannot be captured")


def test_a_captured_network_is_checked_too():
    with pytest.raises(LoadError, match="GPTJForCausalLM cannot be served: 12 tokens at once differ"):
        make_decoder(make_unpaged("gptj"))


class Mixing(torch.nn.Module):
    """An MLP that adds something of the first token of a forward to the tokens of all requests."""

    def __init__(self, mlp, share):
        super().__init__()
        self.mlp, self.share = mlp, share

    def forward(self, hidden):
        made = self.mlp(hidden)
        return made + self.share * made[:, :1]


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 1e-3), (torch.bfloat16, 0.05)])
def test_a_small_leak_within_a_batch_is_found(dtype, share):
    network = new_network("llama").to(dtype)
    make_decoder(copy.deepcopy(network))
    network.model.layers[1].mlp = Mixing(network.model.layers[1].mlp, share)
    with pytest.raises(
        LoadError, match=r"LlamaForCausalLM cannot be served: .* differ|depends on the tokens of another"
    ):
        make_decoder(network)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_check_leaves_no_trace(family, monkeypatch):
    monkeypatch.setattr(graph_capture, "flatten", not_captured)
    decoder = make_decoder(new_network(family))
    pool = decoder.store.pool
    assert (pool.free_pages, pool._cached, pool._idle) == (32, {}, {})
    assert sorted(decoder.store.page_table._free) == list(range(64))


def test_a_network_that_fails_is_not_written_to_the_graph_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(graph_cache.native, "cache_directory", lambda: tmp_path)
    lm = CausalLM(lambda: make_unpaged("gptj"), eos_token_id=2, weights_checksum="abc")
    with pytest.raises(LoadError, match="GPTJForCausalLM cannot be served: 12 tokens"):
        lm.prepare()
    assert not [*tmp_path.iterdir()]


# ---------------------------------------------------------------- one request at a time
def make_library_decoder(network):
    return LibraryDecoder(network, PagePool(1, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["rwkv", "bloom", "gptj"])
def test_the_librarys_own_forward_serves_them(family, dtype):
    make_library_decoder(make_unpaged(family, dtype))


def test_a_cache_that_does_not_continue_a_request_is_refused():
    with pytest.raises(LoadError, match=r"MiniMaxForCausalLM cannot be served: .* 11 \+ 1 tokens: relative difference"):
        make_library_decoder(make_unpaged("minimax"))


def test_a_state_in_the_network_itself_is_refused():
    """RecurrentGemma keeps the state of the last request in its modules, and returns no cache."""
    with pytest.raises(LoadError, match="RecurrentGemmaForCausalLM cannot be served: its forward fails: "):
        make_library_decoder(make_unpaged("recurrent_gemma"))
