"""Engines of the comparison: the process that one runs in, and the files that it reads."""

import os
import subprocess
import sys

import gguf
import pytest
import torch
from gguf.quants import dequantize
from transformers import LlamaConfig, LlamaForCausalLM

from bench.cost.usage import read_tree
from bench.peers.engine_process import EngineProcess
from bench.peers.gguf_model import BF16, Q8_0, write_gguf

ECHO = """
import json
import sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    outputs = [prompt[: command["new"]] for prompt in command["prompts"]]
    print(json.dumps({"seconds": 2.0, "outputs": outputs}), flush=True)
"""


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    config = LlamaConfig(**sizes, **heads, tie_word_embeddings=True, initializer_range=0.2)
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def test_an_engine_in_a_process_answers_each_command():
    with EngineProcess("echo", [sys.executable, "-c", ECHO], os.environ) as engine:
        assert engine.run([[1, 2, 3], [4, 5, 6]], 2).outputs == [[1, 2], [4, 5]]
        assert engine.run([[7, 8]], 1).tokens_per_s == 0.5


def test_an_engine_that_ends_is_reported_with_its_last_words():
    engine = EngineProcess("broken", [sys.executable, "-c", "raise SystemExit('no such model')"], os.environ)
    with pytest.raises(RuntimeError, match=r"(?s)broken ended.*no such model"), engine:
        pass


def test_a_gguf_file_has_the_weights_of_the_network(network, tmp_path):
    write_gguf(network, tmp_path / "model.gguf", BF16)
    read = {
        one.name: torch.tensor(dequantize(one.data, one.tensor_type))
        for one in gguf.GGUFReader(tmp_path / "model.gguf").tensors
    }
    weights = {name: tensor.float() for name, tensor in network.state_dict().items()}
    assert torch.equal(read["token_embd.weight"], weights["model.embed_tokens.weight"])
    assert torch.equal(read["blk.1.ffn_down.weight"], weights["model.layers.1.mlp.down_proj.weight"])
    assert torch.equal(read["output_norm.weight"], weights["model.norm.weight"])
    # llama.cpp rotates rows 2i and 2i + 1 of a head together, transformers rows i and i + 8 of its 16.
    head = weights["model.layers.0.self_attn.k_proj.weight"][16:32]
    assert torch.equal(read["blk.0.attn_k.weight"][16:32:2], head[:8])
    assert torch.equal(read["blk.0.attn_k.weight"][17:32:2], head[8:])
    assert len(read) == 2 + 2 * 9  # the tied output is left out


def test_only_matrices_have_8_bits(network, tmp_path):
    write_gguf(network, tmp_path / "model.gguf", Q8_0)
    kinds = {len(one.shape): one.tensor_type.name for one in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert kinds == {1: "F32", 2: "Q8_0"}


def test_cpu_time_counts_child_processes():
    before = read_tree(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        used = read_tree(os.getpid()) - before
        child.communicate(b"\n")
    assert used.cpu_us >= 0.29e6
