"""Memory while a quantized checkpoint is read: one copy of the network, and the packed tensors of a few weights."""

import json
import subprocess
import sys

import pytest
import torch
import transformers as t

from tests.nn.weights.quantized import layouts
from tests.nn.weights.quantized.test_quantized_checkpoints import AWQ, FP8
from tests.nn.weights.test_checkpoints import MEASURED

EXPERTS = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 1024, "norm_topk_prob": True}


def make_network(family):
    """300 MB in bfloat16, with constant weights."""
    sizes = {"vocab_size": 1000, "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8}
    with torch.device("meta"):
        if family == "llama":
            made = t.LlamaForCausalLM(t.LlamaConfig(**sizes, intermediate_size=4096, num_hidden_layers=9))
        else:
            made = t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**sizes, **EXPERTS, head_dim=128, num_hidden_layers=3))
    made = made.to(torch.bfloat16).to_empty(device="cpu")
    for weight in made.parameters():
        weight.data.fill_(0.5)
    return made


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("name", ["int4", "fp8"])
def test_loading_needs_no_second_copy(tmp_path, family, name):
    """Also of experts, which transformers merges: the parts of a merged one are released before the next."""
    config, layout = {
        "int4": (AWQ | {"group_size": 128}, lambda weight: layouts.awq(weight, 128)),
        "fp8": (FP8 | {"weight_block_size": [128, 128]}, lambda weight: layouts.fp8_blocks(weight, (128, 128))),
    }[name]
    make_network(family).save_pretrained(tmp_path)
    layouts.save(tmp_path, config, layout, dtype="bfloat16")
    result = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path), ""], capture_output=True, text=True, check=True
    )
    size, resident, own = json.loads(result.stdout)
    assert size > 250e6
    assert own < 1.35, f"{own:.2f} of the network"
    assert resident < 1.6, f"{resident:.2f} of the network"
