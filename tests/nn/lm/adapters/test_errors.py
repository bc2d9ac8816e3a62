"""Nothing of an adapter is ignored silently: what does not fit or is not supported is an error that says what to do."""

import copy

import pytest
import torch

from mstar.errors import LoadError, RowsFailed, Unsupported
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.adapters.peft_folder import CONFIG_FILE, WEIGHTS_FILE, open_adapter
from mstar.nn.lm.decoder import Decoder
from mstar.nn.lm.library_decoder import LibraryDecoder
from mstar.requests import Adapter, Sampling
from mstar.walk.batching import Layout
from tests.nn.lm.adapters.peft_folders import PREFIX, write_adapter, write_files
from tests.nn.lm.model_families import network

CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
ANY = Adapter("any", "/nowhere", "")


@pytest.fixture(scope="module")
def decoder():
    return Decoder(copy.deepcopy(network("llama")), PagePool(16, 4), swap_bytes=0, is_deterministic=False)


def load(decoder, adapter):
    """The text of the error of loading an adapter."""
    with pytest.raises(Unsupported) as raised:
        decoder.adapters.get(adapter)
    text = str(raised.value)
    assert "\n  fix: " in text
    return text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_dora", True),
        ("modules_to_save", ["embed_tokens"]),
        ("bias", "all"),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("fan_in_fan_out", True),
        ("rank_pattern", {"q_proj": 4}),
        ("alpha_pattern", {"q_proj": 4}),
        ("layer_replication", [[0, 1]]),
        ("megatron_config", {"a": 1}),
        ("trainable_token_indices", [1]),
        ("target_parameters", ["mlp.experts.down_proj"]),
        ("use_qalora", True),
        ("alora_invocation_tokens", [1]),
        ("init_lora_weights", "pissa_niter_16"),
        ("init_lora_weights", "OLoRA"),
        ("a_field_of_tomorrow", 1),
    ],
)
def test_configurations_other_than_plain_lora(field, value, tmp_path):
    with pytest.raises(LoadError, match=rf"`{field}`[\s\S]*\n  fix: merge"):
        write_adapter(tmp_path / "one", network("llama"), 1, **{field: value})


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (CONFIG | {"peft_type": "IA3"}, "is not LoRA"),
        ([], "is not LoRA"),
        (CONFIG | {"r": 0}, "r must be 1 or more"),
        (CONFIG | {"lora_alpha": "8"}, "a finite number"),
    ],
)
def test_malformed_configurations(config, problem, tmp_path):
    with pytest.raises(LoadError, match=problem):
        write_files(tmp_path / "one", {"a": torch.zeros(1)}, config)


def test_unreadable_files(tmp_path, decoder):
    with pytest.raises(LoadError, match=r"cannot be read[\s\S]*fix"):
        open_adapter("one", tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"pickle")
    with pytest.raises(LoadError, match=r"pickle[\s\S]*safe_serialization"):
        open_adapter("one", tmp_path)
    (tmp_path / CONFIG_FILE).write_text("{")
    (tmp_path / WEIGHTS_FILE).write_bytes(b"short")
    with pytest.raises(LoadError, match="is not JSON"):
        open_adapter("one", tmp_path)
    (tmp_path / CONFIG_FILE).write_text('{"peft_type": "LORA"}')
    assert "not a complete safetensors file" in load(decoder, open_adapter("one", tmp_path))
    for path in ("no\0path", "no\ud800path", "~missing-user/one"):
        with pytest.raises(LoadError, match=r"cannot be read[\s\S]*fix"):
            open_adapter("one", path)
    for name in ("", "a b", "a:b", "../a", "x" * 65):
        with pytest.raises(LoadError, match="is not a name"):
            open_adapter(name, tmp_path)


Q = f"{PREFIX}model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({f"{Q}.lora_A.weight": (2, 32), f"{Q}.lora_B.weight": (31, 2)}, "the network needs"),
        ({f"{Q}.lora_A.weight": (3, 32), f"{Q}.lora_B.weight": (32, 3)}, "the network needs"),
        ({f"{Q}.lora_A.weight": (2, 32)}, "one of the two matrices"),
        ({f"{Q}.lora_magnitude_vector": (32,)}, "not a matrix of plain LoRA"),
        ({f"{PREFIX}model.embed_tokens.lora_embedding_A": (2, 97)}, "not a matrix of plain LoRA"),
        ({f"{PREFIX}lm_head.weight": (97, 32)}, "not a matrix of plain LoRA"),
        ({f"{PREFIX}lm_head.lora_{half}.weight": size for half, size in (("A", (2, 32)), ("B", (97, 2)))}, "`lm_head`"),
        (
            {
                f"{PREFIX}model.layers.7.mlp.up_proj.lora_{half}.weight": size
                for half, size in (("A", (2, 32)), ("B", (64, 2)))
            },
            r"did you mean `model.layers",
        ),
    ],
)
def test_tensors_that_do_not_fit(tensors, problem, tmp_path, decoder):
    adapter = write_files(tmp_path / "one", {name: torch.ones(size) for name, size in tensors.items()}, CONFIG)
    assert problem in load(decoder, adapter)


def test_a_target_module_without_tensors(tmp_path, decoder):
    adapter = write_adapter(tmp_path / "one", network("llama"), 1, targets=["q_proj", "query"])
    assert "target modules `query`" in load(decoder, adapter)


def test_networks_that_cannot_have_adapters():
    gpt2 = Decoder(copy.deepcopy(network("gpt2")), PagePool(16, 4), swap_bytes=0, is_deterministic=False)
    assert "has no captured linear layers" in load(gpt2, ANY)
    library = LibraryDecoder(copy.deepcopy(network("llama")), PagePool(16, 4))
    caches, params = [library.new_cache(None)] * 2, [Sampling(), Sampling(adapter=ANY)]
    with pytest.raises(RowsFailed, match="does not compute adapters") as raised:
        library.next_token(torch.tensor([5, 6]), caches, params, Layout(2, (1, 1), frozenset()))
    assert [*raised.value.errors] == [1]
    with pytest.raises(LoadError, match="does not compute adapters"):
        library.adapters.preload({"a": "/nowhere"})
