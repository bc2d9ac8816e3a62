"""A rank reads its part of a checkpoint, and has the parameters of a rank that reads all and keeps its part."""

import copy
import json
import subprocess
import sys

import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file

from mstar.errors import LoadError
from mstar.nn.lm.tensor_parallel import TensorParallel
from mstar.nn.ranks import Rank
from mstar.nn.weights import sharded_files
from mstar.nn.weights.shards import current_sharded_load
from mstar.nn.weights.sources import Weights
from tests.nn.lm.model_families import FAMILIES

SHARDED = ["llama", "qwen2", "qwen3", "qwen3_moe", "gemma3", "mistral", "phi"]
LARGE = t.LlamaConfig(
    vocab_size=8192,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=12,
    num_attention_heads=16,
    num_key_value_heads=4,
    dtype="bfloat16",
)
"""A network of 360 MB."""
MAX_READ_SHARE = 0.6
MAX_PEAK_SHARE = 0.75


def random_network(name):
    """A network in which no parameter is zero, as biases are otherwise."""
    torch.manual_seed(0)
    network = FAMILIES[name]().eval()
    for parameter in network.parameters():
        parameter.data.normal_()
    return network


@pytest.fixture
def saved(tmp_path):
    """A function that saves a random network of a family in several files."""

    def save(name, max_shard_size="40KB"):
        network = random_network(name)
        network.save_pretrained(tmp_path, max_shard_size=max_shard_size)
        return network

    return save


class Reader:
    """Loads from a folder, and remembers the reported totals."""

    def __init__(self, folder, change=lambda network: network):
        self._folder, self._change, self.totals = folder, change, []

    def __call__(self):
        network = Weights(str(self._folder)).network(progress=lambda _done, total: self.totals.append(total))
        return self._change(network)


def sharded_afterwards(network, rank, ranks=2):
    part = copy.deepcopy(network)
    TensorParallel(Rank(rank, ranks)).shard(part)
    return part


def assert_equal_parameters(network, expected):
    parameters, others = (dict(each.named_parameters(remove_duplicate=False)) for each in (network, expected))
    assert parameters.keys() == others.keys()
    for name, parameter in parameters.items():
        assert torch.equal(parameter, others[name]), name


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", SHARDED)
def test_ranks_that_read_their_parts_have_the_shards_of_the_whole(saved, tmp_path, name, ranks):
    whole = saved(name)
    for rank in range(ranks):
        network = TensorParallel(Rank(rank, ranks)).load(Reader(tmp_path))
        assert_equal_parameters(network, sharded_afterwards(whole, rank, ranks))


@pytest.mark.parametrize("name", SHARDED)
def test_two_ranks_read_about_half_each(saved, tmp_path, name):
    saved(name)
    whole, read = Reader(tmp_path), []
    whole()
    for rank in range(2):
        part = Reader(tmp_path)
        TensorParallel(Rank(rank, 2)).load(part)
        read.append(part.totals[-1])
        assert read[-1] <= MAX_READ_SHARE * whole.totals[-1]
    assert sum(read) >= 0.95 * whole.totals[-1], "what one does not read, the other does; headers are not counted"


def test_a_head_that_is_the_embedding_stays_it(saved, tmp_path):
    saved("gemma3")
    network = TensorParallel(Rank(1, 2)).load(Reader(tmp_path))
    assert network.lm_head.weight is network.model.embed_tokens.weight


def test_columns_do_not_keep_their_whole_matrix(saved, tmp_path):
    saved("llama")
    network = TensorParallel(Rank(0, 2)).load(Reader(tmp_path))
    columns = network.model.layers[0].mlp.down_proj.weight
    assert columns.untyped_storage().nbytes() == columns.numel() * columns.element_size()


def test_experts_that_are_merged_in_the_file_are_read_in_two_parts(tmp_path):
    whole = random_network("qwen3_moe")
    whole.config.architectures = ["Qwen3MoeForCausalLM"]
    whole.config.save_pretrained(tmp_path)
    save_file(whole.state_dict(), tmp_path / "model.safetensors")
    part, all_of_it = Reader(tmp_path), Reader(tmp_path)
    assert_equal_parameters(TensorParallel(Rank(1, 2)).load(part), sharded_afterwards(whole, 1))
    all_of_it()
    assert part.totals[-1] <= MAX_READ_SHARE * all_of_it.totals[-1]


def test_many_copies_come_from_several_mappings(saved, tmp_path, monkeypatch):
    whole = saved("llama", max_shard_size="1GB")
    opened = []
    real_open = sharded_files.safe_open
    monkeypatch.setattr(
        sharded_files, "safe_open", lambda *args, **kwargs: opened.append(args) or real_open(*args, **kwargs)
    )
    monkeypatch.setattr(sharded_files, "_COPY_BYTES", 1)
    assert_equal_parameters(TensorParallel(Rank(1, 2)).load(Reader(tmp_path)), sharded_afterwards(whole, 1))
    columns = 2 * whole.config.num_hidden_layers
    assert len(opened) == 2 + columns, "the header, what is mapped, and each of the matrices with columns"


def test_a_cast_network_is_the_shard_of_the_cast_one(saved, tmp_path):
    saved("llama")
    network = TensorParallel(Rank(1, 2)).load(lambda: Weights(str(tmp_path)).network("bfloat16"))
    assert_equal_parameters(network, sharded_afterwards(Weights(str(tmp_path)).network("bfloat16"), 1))


# ---------------------------------------------------------------- what is read whole
def assert_read_whole(reader, network, expected):
    whole = sum(file.stat().st_size for file in reader._folder.glob("*.safetensors"))
    assert reader.totals[-1] == whole
    assert_equal_parameters(network, sharded_afterwards(expected, 1))


def test_a_conversion_that_is_not_known_is_read_whole(saved, tmp_path, monkeypatch):
    whole, reader = saved("qwen3_moe"), Reader(tmp_path)
    monkeypatch.setattr(sharded_files, "_source_shard", lambda converter, shard: None)
    assert_read_whole(reader, TensorParallel(Rank(1, 2)).load(reader), whole)


def test_a_network_that_is_made_of_another_one_is_read_whole(saved, tmp_path):
    whole = saved("llama")
    reader = Reader(tmp_path, copy.deepcopy)
    assert_read_whole(reader, TensorParallel(Rank(1, 2)).load(reader), whole)


def test_a_network_that_is_not_read_is_sharded(tmp_path):
    whole = random_network("llama")
    network = TensorParallel(Rank(1, 2)).load(lambda: copy.deepcopy(whole))
    assert_equal_parameters(network, sharded_afterwards(whole, 1))


def test_later_loads_are_whole(saved, tmp_path):
    whole = saved("llama")
    TensorParallel(Rank(1, 2)).load(Reader(tmp_path))
    assert current_sharded_load() is None
    assert_equal_parameters(Reader(tmp_path)(), whole)


# ---------------------------------------------------------------- refusals
def test_a_tensor_of_another_shape_is_named_with_its_whole_shape(saved, tmp_path):
    saved("llama", max_shard_size="1GB")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"] = torch.zeros(100, 32)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(LoadError, match=r"embed_tokens.weight is \[100, 32\], not \[97, 32\]"):
        TensorParallel(Rank(0, 2)).load(Reader(tmp_path))


def test_a_missing_tensor_is_named(saved, tmp_path):
    saved("llama", max_shard_size="1GB")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(LoadError, match=r"model\.layers\.1\.mlp\.down_proj\.weight is missing"):
        TensorParallel(Rank(0, 2)).load(Reader(tmp_path))


def test_an_incomplete_file_is_refused(saved, tmp_path):
    saved("llama", max_shard_size="1GB")
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(LoadError, match="is not a complete safetensors file"):
        TensorParallel(Rank(0, 2)).load(Reader(tmp_path))


def test_heads_that_cannot_be_divided_are_refused(saved, tmp_path):
    saved("llama")
    with pytest.raises(LoadError, match="not divisible by 4 ranks"):
        TensorParallel(Rank(0, 4)).load(Reader(tmp_path))


# ---------------------------------------------------------------- memory
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_rank_needs_the_memory_of_its_shard(tmp_path):
    with torch.device("meta"):
        network = t.LlamaForCausalLM(LARGE).bfloat16()
    network.to_empty(device="cpu").save_pretrained(tmp_path)

    def measure(rank, ranks):
        command = [sys.executable, "-m", "tests.nn.weights.memory_of_a_rank", str(tmp_path), str(rank), str(ranks)]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    whole = measure(0, 1)
    size = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    assert min(whole.values()) >= 0.95 * size
    for rank in range(2):
        part = measure(rank, 2)
        assert part["read"] <= MAX_READ_SHARE * whole["read"]
        assert part["loaded"] <= MAX_READ_SHARE * whole["loaded"]
        assert part["peak"] <= MAX_PEAK_SHARE * whole["peak"]
