"""Ranks share a network's matrices: together they have all of it, and each writes what the whole network would."""

import copy
import json
import subprocess
import sys
from collections import Counter

import pytest
import torch
import transformers as t

from mstar.errors import DeviceFailed, LoadError
from mstar.nn import native
from mstar.nn.compile.graph_capture import flatten
from mstar.nn.kv.paged_attention import PAGED_ATTENTION
from mstar.nn.lm.tensor_parallel import TensorParallel
from mstar.nn.ranks import Rank, all_reduce, join_group
from tests.nn.lm.concurrent_requests import prompts, reference_tokens
from tests.nn.lm.model_families import FAMILIES, SMALL, network
from tests.nn.lm.tensor_parallel_rank import REQUESTS, sampling_params

SHARED = ["llama", "qwen2", "qwen3", "qwen3_moe", "gemma3", "mistral", "phi"]


def sharded(name, ranks):
    """A network with no zeros that a bias might hide behind, and each rank's part of it."""
    torch.manual_seed(0)
    whole = FAMILIES[name]().eval()
    for parameter in whole.parameters():
        parameter.data.normal_()
    parts = [copy.deepcopy(whole) for _ in range(ranks)]
    for rank, part in enumerate(parts):
        TensorParallel(Rank(rank, ranks)).shard(part)
    return whole, parts


def join_parts(name, whole, parts):
    """The parameter that the ranks have parts of."""
    changed = [dim for dim in range(whole.ndim) if parts[0].shape[dim] != whole.shape[dim]]
    if not changed:
        return sum(parts) if name.endswith(("dense.bias", "fc2.bias")) else parts[-1]
    (dim,) = changed
    packed = 2 if name.endswith("gate_up_proj") else 1
    return torch.cat(
        [half for halves in zip(*(p.chunk(packed, dim) for p in parts), strict=True) for half in halves], dim
    )


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", SHARED)
def test_the_ranks_together_have_all_of_it(name, ranks):
    whole, parts = sharded(name, ranks)
    of_ranks = [dict(part.named_parameters()) for part in parts]
    for key, parameter in whole.named_parameters():
        assert torch.equal(join_parts(key, parameter, [part[key] for part in of_ranks]), parameter), key


def size_bytes(network):
    """What its parameters keep in memory."""
    return sum({p.data_ptr(): p.untyped_storage().nbytes() for p in network.parameters()}.values())


@pytest.mark.parametrize("name", SHARED)
def test_each_rank_keeps_about_half(name):
    whole, parts = sharded(name, 2)
    for part in parts:
        assert 0.5 <= size_bytes(part) / size_bytes(whole) < 0.54


def test_a_head_that_is_the_embedding_stays_it():
    for part in sharded("gemma3", 2)[1]:
        assert part.lm_head.weight is part.model.embed_tokens.weight


def test_more_ranks_than_can_share_the_heads_are_refused():
    with pytest.raises(
        LoadError, match=r"has 4 query heads and 2 key heads, not divisible by 4 ranks\n  fix: .* divides 2"
    ):
        sharded("llama", 4)


def test_a_model_without_a_plan_is_refused():
    with pytest.raises(LoadError, match="GPT2LMHeadModel has no tensor-parallel plan\n  fix: place it on one device"):
        sharded("gpt2", 2)


def check_refused(network, message):
    """It is refused, and left as it was."""
    before = [parameter.shape for parameter in network.parameters()]
    with pytest.raises(LoadError, match=message):
        TensorParallel(Rank(0, 2)).shard(network)
    assert [parameter.shape for parameter in network.parameters()] == before


def test_a_style_that_is_not_known_is_refused():
    check_refused(
        t.Olmo2ForCausalLM(t.Olmo2Config(**SMALL)),
        "'rowwise_split_input' for model.layers.0.self_attn.o_proj, a Linear: not supported\n  fix: ",
    )


def test_a_weight_that_is_sliced_for_one_of_its_users_only_is_refused():
    tied = FAMILIES["gemma3"]()
    del tied.tp_plan["lm_head"]
    check_refused(tied, "but not its parameters `lm_head.weight`")


def test_experts_that_would_be_added_up_whole_are_refused():
    experts = FAMILIES["qwen3_moe"]()
    del experts.tp_plan["model.layers.*.mlp.experts.down_proj"]
    check_refused(experts, r"but not its parameters `model\.layers\.0\.mlp\.experts\.down_proj`")


def calls(network):
    """What a network calls once it is flat, and how often."""
    graph = flatten(network)[0].__self__.graph
    return Counter(node.target for node in graph.nodes if node.op == "call_function")


def test_a_rank_calls_the_kernels_that_the_whole_does_and_adds_up():
    config = t.Qwen3Config(**(SMALL | {"num_hidden_layers": 1}), head_dim=8, attn_implementation=PAGED_ATTENTION)
    whole = t.Qwen3ForCausalLM(config).bfloat16().eval()
    part = copy.deepcopy(whole)
    TensorParallel(Rank(1, 2)).shard(part)
    expected = calls(whole)
    product = torch.ops.mkldnn._linear_pointwise.default if native.supports_bf16_matmul() else native.linear
    assert {native.rms_norm, native.silu_mul, product} <= expected.keys()
    sums = {all_reduce: 3, torch.ops.aten.pad.default: 1}  # attention, MLP and logits, of which others have some
    assert calls(part) == expected + Counter(sums)


def test_a_group_of_one_computes_what_the_whole_does(tmp_path):
    tokens = prompts(3)[2][None]
    with join_group(f"file://{tmp_path}/meet", 0, 1, timeout_s=10) as rank, torch.inference_mode():
        for name in SHARED:
            part = copy.deepcopy(network(name))
            TensorParallel(rank).shard(part)
            assert torch.equal(part(tokens).logits, network(name)(tokens).logits), name


@pytest.mark.parametrize("token", [-1, SMALL["vocab_size"]])
def test_a_token_that_no_rank_knows_is_refused_by_all(token):
    for part in sharded("llama", 2)[1]:
        with pytest.raises(IndexError, match="a token is out of range 0 to 96\n  fix: "):
            part.get_input_embeddings()(torch.tensor([5, token]))


def test_a_rank_does_not_wait_for_ever(tmp_path):
    with (
        pytest.raises(DeviceFailed, match=r"[Tt]imeout|timed out"),
        join_group(f"file://{tmp_path}/meet", 0, 2, timeout_s=0.2),
    ):
        pytest.fail("it is alone")


def run_ranks(tmp_path, *names):
    """What each of two ranks printed."""
    address = f"file://{tmp_path}/meet"
    command = [sys.executable, "-W", "error::UserWarning", "-m", "tests.nn.lm.tensor_parallel_rank", address]
    ranks = [subprocess.Popen([*command, str(rank), "2", *names], stdout=subprocess.PIPE) for rank in range(2)]
    try:
        return [json.loads(rank.communicate(timeout=150)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_two_ranks_in_a_crowd_write_what_generate_writes(tmp_path):
    first, second = run_ranks(tmp_path, *SHARED)
    assert first == second, "the same tokens, and the same bits of logits and hidden states"
    for name in SHARED:
        right = [
            reference_tokens(name, prompt, params)
            for prompt, params in zip(prompts(REQUESTS), sampling_params(REQUESTS), strict=True)
        ]
        assert first[name]["written"] == right, name
        assert first[name]["width"] == SMALL["vocab_size"]
