"""The graph cache: the second start maps what the first one wrote, and a cache that cannot be used is not used."""

import logging
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import transformers as t

from mstar.errors import LoadError
from mstar.nn import native
from mstar.nn.compile import flat_graph, graph_cache, graph_capture, graph_file, seq2seq_capture
from mstar.nn.compile.graph_cache import FlatNetwork, load_or_capture, trial_run
from mstar.nn.compile.graph_capture import flatten
from mstar.nn.kv import attention_interface
from mstar.nn.kv.paged_attention import PAGED_ATTENTION
from mstar.nn.lm import decoder_check, eager_seq2seq
from mstar.nn.weights import gguf
from tests.nn.lm.model_families import SMALL


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return t.LlamaForCausalLM(t.LlamaConfig(**SMALL)).to(dtype).eval()


def never():
    raise AssertionError("the network is loaded")


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """An empty cache directory."""
    native.is_native(torch.float32, torch.device("cpu"))  # the kernels stay where they are
    monkeypatch.setattr(native, "cache_directory", lambda: tmp_path / "cache")
    graph_cache.read_entry.cache_clear()
    return tmp_path / "cache"


def results(flat):
    return trial_run(flat.forward, flat.embedding, flat.layers)


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cached_network_gives_the_bits_of_a_captured_one(dtype, is_int8):
    original = network(dtype)
    original.config._attn_implementation = PAGED_ATTENTION
    captured, *_ = flatten(original, is_int8=is_int8)
    expected = trial_run(captured, original.get_input_embeddings(), original.config.num_hidden_layers)
    first = load_or_capture("x", lambda: network(dtype), is_int8=is_int8)
    second = load_or_capture("x", never, is_int8=is_int8)
    for flat in (first, second):
        assert all(map(torch.equal, results(flat), expected))


def test_other_weights_and_other_options_have_entries_of_their_own(directory):
    load_or_capture("x", network, is_int8=False)
    load_or_capture("y", network, is_int8=False)
    load_or_capture("x", network, is_int8=True)
    assert len([*directory.glob("*.graph")]) == len([*directory.iterdir()]) == 3


@pytest.mark.parametrize("place", ["weights", "footer", "end"])
def test_a_damaged_entry_is_replaced(place, directory, caplog):
    load_or_capture("x", network, is_int8=False)
    (entry,) = directory.iterdir()
    data = bytearray(entry.read_bytes())
    if place == "end":
        del data[-100:]
    else:
        # The highest byte of a weight's exponent, or a byte of the table.
        position = len(data) - 100 if place == "footer" else 3
        data[position] ^= 0x40
    entry.unlink()
    entry.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        flat = load_or_capture("x", network, is_int8=False)
    assert isinstance(flat, FlatNetwork)
    assert "is not used and is removed" in caplog.text
    load_or_capture("x", never, is_int8=False)


def test_without_a_writable_directory_nothing_is_cached(directory, caplog):
    directory.write_text("a file, so that no directory can be made here")
    with caplog.at_level(logging.WARNING):
        flat = load_or_capture("x", network, is_int8=False)
    assert isinstance(flat, FlatNetwork)
    assert len(caplog.records) == 1
    assert "is not cached" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("no home directory"), PermissionError(13, "no permission")])
def test_without_a_home_directory_nothing_is_cached(error, monkeypatch, caplog):
    monkeypatch.setattr(native, "cache_directory", Mock(side_effect=error))
    graph_cache.preload_entry("x", is_int8=False)
    caplog.clear()
    assert isinstance(load_or_capture("x", network, is_int8=False), t.LlamaForCausalLM)
    (record,) = caplog.records
    assert f"there is no graph cache, so every start captures the network: {error}" in record.getMessage()


def test_a_graph_that_differs_from_its_network_is_refused(directory, monkeypatch):
    other, capture = network(), graph_capture.capture
    other.config._attn_implementation = PAGED_ATTENTION
    other.model.layers[0].mlp.down_proj.weight.data.mul_(2)
    monkeypatch.setattr(graph_capture, "capture", lambda _, **options: capture(other, **options))
    with pytest.raises(LoadError, match=r"the captured graph differs[\s\S]*fix: install another version of torch"):
        load_or_capture("x", network, is_int8=False)
    assert not [*directory.iterdir()]


def test_a_network_whose_results_are_zeros_is_served():
    def zeros():
        made = network()
        made.lm_head.weight.data.zero_()
        return made

    assert isinstance(load_or_capture("x", zeros, is_int8=False), FlatNetwork)


def test_the_key_has_the_code_and_the_packages_of_a_graph(monkeypatch):
    hashed = {file for pattern in graph_cache._CODE_FILES for file in graph_cache._CODE.glob(pattern)}
    modules = (graph_capture, seq2seq_capture, attention_interface, eager_seq2seq, decoder_check, gguf)
    assert {Path(str(module.__file__)) for module in modules} <= hashed
    before = graph_cache.entry_path("x", "")
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "other" if name == "gguf" else version(name))
    assert graph_cache.entry_path("x", "") != before


def test_a_disk_that_fills_up_leaves_no_file(directory, monkeypatch, caplog):

    class Usage:
        free = 1 << 10

    monkeypatch.setattr(graph_file.shutil, "disk_usage", lambda _: Usage)
    assert isinstance(load_or_capture("x", network, is_int8=False), FlatNetwork)
    assert [*directory.iterdir()] == []
    assert "is not cached" in caplog.text


def test_the_oldest_entries_are_removed_above_the_limit(directory, monkeypatch):
    load_or_capture("x", network, is_int8=False)
    (old,) = directory.iterdir()
    os.utime(old, (1, 1))
    monkeypatch.setattr(graph_file, "MAX_CACHE_BYTES", int(1.5 * old.stat().st_size))
    load_or_capture("y", network, is_int8=False)
    (left,) = directory.iterdir()
    assert left != old


@pytest.mark.parametrize(
    "row",
    [
        ["call_method", "numpy", {"tuple": []}, {}],
        ["placeholder", "x=print(1)", {"tuple": []}, {}],
        ["get_attr", "forward.__globals__", {"tuple": []}, {}],
        ["call_function", "aten.relu.default", {"tuple": []}, {"x=print(1), y": 1}],
        ["call_function", "aten.relu.default", {"tuple": [{"torch": "load"}]}, {}],
        ["call_function", "prims.add.default", {"tuple": []}, {}],
    ],
)
def test_a_file_with_other_operations_is_not_decoded(row):
    with pytest.raises(ValueError, match="unknown"):
        flat_graph.decode([row])


def test_a_cached_decoder_needs_no_transformers():
    heavy = ("transformers", "torch._dynamo", "scipy", "sympy")
    code = f"import sys, mstar.nn.lm.decoder; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
