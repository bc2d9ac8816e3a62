"""The graph cache: the second start maps what the first one wrote, and a cache that cannot be used is not used."""

import logging
import os
import subprocess
import sys

import pytest
import torch
import transformers as t

from mstar.nn import native
from mstar.nn.compile import graph_cache, graph_file
from mstar.nn.compile.graph_cache import FlatNetwork, load_or_capture, trial_run
from mstar.nn.compile.graph_capture import flatten
from mstar.nn.kv.paged_attention import PAGED_ATTENTION
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
    captured, _ = flatten(original, is_int8=is_int8)
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
    graph_cache.read_entry.cache_clear()
    load_or_capture("x", never, is_int8=False)


def test_without_a_writable_directory_nothing_is_cached(directory, caplog):
    directory.write_text("a file, so that no directory can be made here")
    with caplog.at_level(logging.WARNING):
        flat = load_or_capture("x", network, is_int8=False)
    assert isinstance(flat, FlatNetwork)
    assert len(caplog.records) == 1
    assert "is not cached" in caplog.text


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


def test_a_cached_decoder_needs_no_transformers():
    heavy = ("transformers", "torch._dynamo", "scipy", "sympy")
    code = f"import sys, mstar.nn.lm.decoder; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
