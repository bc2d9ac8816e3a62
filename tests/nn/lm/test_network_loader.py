"""Settings of an operator for a language model: the dtype of its weights and KV cache, and int8."""

import copy

import pytest
import torch

from mstar.errors import LoadError
from mstar.nn import native
from mstar.nn.compile import graph_cache
from mstar.nn.compile.graph_file import SUFFIX
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.lm.library_decoder import LibraryDecoder
from mstar.requests import Sampling
from tests.models.causal_lm.causal_lm_tiny import LIBRARY_FAMILIES
from tests.nn.lm.model_families import network

PROMPT = torch.tensor([5, 17, 40, 3, 9, 88, 21])


def make_lm(name="llama", **options):
    settings = options.pop("settings", {})
    lm = CausalLM(lambda: copy.deepcopy(network(name)), eos_token_id=2, pages=64, **options)
    lm.operator_settings = settings
    return lm


def written(lm, count=8):
    """Tokens that it writes after the prompt, greedily."""
    kv, tokens = lm.kv(), [PROMPT]
    for _ in range(count):
        tokens.append(lm.next_token(tokens[-1], kv, Sampling()))
    return torch.cat(tokens[1:]).tolist()


def library_logits(dtype):
    """Logits after the prompt of a network that transformers has loaded in a dtype."""
    source = network("llama")
    loaded = type(source).from_pretrained(None, config=source.config, state_dict=source.state_dict(), dtype=dtype)
    with torch.inference_mode():
        return loaded.eval()(PROMPT[None]).logits[0, -1].float()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_weights_and_kv_cache_have_the_dtype_of_the_placement(dtype):
    lm = make_lm(settings={"dtype": dtype})
    tokens = written(lm)
    assert lm.decoder._embed.weight.dtype is getattr(torch, dtype)
    assert {keys.dtype for keys in lm.decoder.store.keys} == {getattr(torch, dtype)}
    best = library_logits(getattr(torch, dtype)).topk(2).indices.tolist()
    assert tokens[0] in best, "a tie can be broken either way"


def test_rotary_angles_stay_float32():
    loaded = make_lm()._loader.with_settings({"dtype": "bfloat16"}).load_uncached()
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in loaded.buffers()} == {torch.float32}
    assert network("llama").get_input_embeddings().weight.dtype is torch.float32


def test_each_dtype_has_its_entry_in_the_graph_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "cache_directory", lambda: tmp_path)
    for dtype in ("bfloat16", "float32", "bfloat16"):
        assert written(make_lm(weights_checksum="x", settings={"dtype": dtype}))
        graph_cache.read_entry.cache_clear()
    assert written(make_lm(weights_checksum="x")) == written(make_lm())
    assert len([*tmp_path.glob(f"*{SUFFIX}")]) == 3


@pytest.mark.skipif(not native.supports_int8_matmul(), reason="this CPU has no fast int8")
def test_int8_of_the_placement_is_that_of_the_constructor():
    lm = make_lm(settings={"quantization": "int8"})
    assert written(lm) == written(make_lm(int8=True))
    assert written(make_lm(int8=True, settings={"dtype": "float32"})) == written(lm)


def test_a_network_that_transformers_runs_has_no_int8_and_no_attention_backend():
    lm = CausalLM(LIBRARY_FAMILIES["bloom"], eos_token_id=2)
    lm._decoder_class = lambda: LibraryDecoder
    lm.operator_settings = {"quantization": "int8"}
    with pytest.raises(LoadError, match="BloomForCausalLM is run by transformers, which has no int8 mode"):
        lm.prepare()
    lm.operator_settings = {"attention_backend": "torch"}
    with pytest.raises(LoadError, match="BloomForCausalLM is run by transformers, which does not use `attention_back"):
        lm.prepare()
    lm.operator_settings = {"kv_cache_dtype": "fp8"}
    with pytest.raises(LoadError, match=r"does not use `kv_cache_dtype`\n  fix: remove `kv_cache_dtype` from the pl"):
        lm.prepare()
