"""Experts that another process computes: the tokens are those of the whole network, and the bytes are predictable."""

import pytest
import torch
from torch.nn import Parameter

from mstar.errors import LoadError
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.lm.remote_experts import ExpertSizes, find_experts, replace_experts, take_experts
from mstar.requests import Sampling
from mstar.walk.batching import Layout
from tests.nn.lm.model_families import new_network


class SameProcess:
    """Experts in this process, which counts the elements that would move."""

    def __init__(self, layers):
        self.layers, self.calls, self.bytes_moved = layers, [], 0

    def run(self, layer, hidden, chosen, weights):
        self.calls.append((layer, len(hidden)))
        result = self.layers[layer](hidden, chosen, weights)
        self.bytes_moved += sum(each.numel() * each.element_size() for each in (hidden, chosen, weights, result))
        return result


def make_lm(process=None):
    lm = CausalLM(lambda: new_network("qwen3_moe"), eos_token_id=-1, pages=64)
    lm.name, lm.expert_process = "lm", process
    return lm


def generate(lm, prompts, steps):
    decoder = lm.decoder
    caches = [decoder.new_cache(None) for _ in prompts]
    tokens, layout = torch.cat(prompts), Layout(len(prompts), tuple(map(len, prompts)))
    outputs = []
    for _ in range(steps):
        tokens = decoder.next_token(tokens, caches, [Sampling()] * len(prompts), layout)[0].flatten()
        layout = Layout(len(prompts), (1,) * len(prompts))
        outputs.append(tokens.tolist())
    return outputs


def test_a_network_with_remote_experts_writes_the_same_tokens():
    process = SameProcess(take_experts(new_network("qwen3_moe")))
    prompts = [torch.arange(6, 6 + length) for length in (3, 11, 7)]
    lm = make_lm(process)
    _ = lm.decoder
    process.calls.clear()  # those of its check at load time
    assert generate(lm, prompts, 8) == generate(make_lm(), prompts, 8)
    layers = len(process.layers)
    assert [layer for layer, _ in process.calls] == [*range(layers)] * 8
    assert {count for _, count in process.calls[:layers]} == {21}
    assert {count for _, count in process.calls[layers:]} == {3}


def test_weights_of_remote_experts_are_freed():
    network = new_network("qwen3_moe")
    sizes = {name: parameter.numel() for name, parameter in network.named_parameters()}
    replace_experts(network, SameProcess([]))
    missing = sizes.keys() - dict(network.named_parameters()).keys()
    assert missing
    assert all(name.endswith(("experts.gate_up_proj", "experts.down_proj")) for name in missing)


def test_moved_bytes_are_those_of_the_formula():
    process = SameProcess(take_experts(new_network("qwen3_moe")))
    lm = make_lm(process)
    _ = lm.decoder
    process.bytes_moved = 0
    config = new_network("qwen3_moe").config
    generate(lm, [torch.arange(6, 26)], 5)
    sizes = ExpertSizes(config.num_hidden_layers, config.hidden_size, config.num_experts_per_tok, 4)
    assert process.bytes_moved == sizes.activation_bytes(20 + 4)
    assert lm.memory_stats()["expert_bytes"] == process.bytes_moved


def test_a_network_without_experts_is_refused():
    with pytest.raises(LoadError, match=r"LlamaForCausalLM has no experts.*(?s:.)*fix: remove `experts`"):
        take_experts(new_network("llama"))


def test_only_modules_with_a_matrix_for_each_expert_are_experts():
    module = torch.nn.Module()
    module.gate_up_proj = module.down_proj = Parameter(torch.zeros(2, 2))
    assert not find_experts(module)
    module.gate_up_proj = module.down_proj = Parameter(torch.zeros(3, 2, 2))
    assert list(find_experts(module)) == [""]
