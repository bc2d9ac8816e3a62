"""Sampling of the codes of a frame: on a pretend GPU the codes of the CPU, and the rows that fail are reported."""

from dataclasses import replace

import pytest
import torch

from mstar.errors import NotFinite, RowsFailed
from mstar.nn.audio.code_predictor import CodePredictor
from mstar.nn.audio.code_sampling import capture_largest, sample_frames
from mstar.nn.device_graphs import padded_size
from mstar.nn.device_memory import open_memory
from mstar.nn.lm.device_steps.captured_sampling import GREEDY
from mstar.nn.pretend_gpu import count_traffic, memory_id, pretend_gpu, with_memory
from mstar.requests import BadSampling, Sampling
from tests.nn.audio.test_code_predictor import CODES, LAYERS, SHAPES, tensors

SHAPE = SHAPES[0]
CONFIG = {"num_code_groups": SHAPE["groups"], "num_attention_heads": SHAPE["heads"], "head_dim": SHAPE["size"]}
CONFIG |= {"num_key_value_heads": SHAPE["kv_heads"], "rms_norm_eps": 1e-6, "num_hidden_layers": LAYERS}
MIXED = [
    Sampling(),
    Sampling(temperature=0.9, top_k=20, top_p=0.9, seed=5),
    Sampling(temperature=1.3, min_p=0.02, seed=-6),
    Sampling(logit_bias=((7, 2.0),), allowed_ranges=((3, 12), (30, 40))),
]


@pytest.fixture(scope="module")
def networks():
    made = tensors(SHAPE, torch.float32)
    moved = {name: tensor.to(pretend_gpu()) for name, tensor in made.items()}
    return CodePredictor(CONFIG, moved), CodePredictor(CONFIG, made)


def frame(network, samplings, seed=1):
    torch.manual_seed(seed)
    first, hidden = torch.randint(0, CODES, (len(samplings), 1)), torch.randn(len(samplings), SHAPE["width"])
    return sample_frames(network, first, hidden.to(network.device), samplings)


@torch.inference_mode()
@pytest.mark.parametrize("samplings", [[Sampling()] * 3, MIXED, MIXED[1:3]], ids=["greedy", "mixed", "drawn"])
def test_codes_are_those_of_the_cpu(networks, samplings):
    for _ in range(2):  # the second one is replayed
        with count_traffic() as traffic:
            codes, embedding = frame(networks[0], samplings)
    expected, expected_embedding = frame(networks[1], samplings)
    assert torch.equal(codes, expected)
    torch.testing.assert_close(embedding.cpu(), expected_embedding, rtol=0, atol=1e-4)
    assert sum(traffic.syncs.values()) == 2, "one copies the hidden states of this test"
    assert len(codes.unique()) > 4


BIASED = Sampling(temperature=1.0, logit_bias=((3, 1.5), (9, -2.0)), seed=8)


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7])
def test_a_frame_is_one_graph_and_nothing_of_it_is_baked_in(networks, rows, monkeypatch):
    network = networks[0]
    for samplings in ([Sampling()], MIXED[1:3], [BIASED, *MIXED[:3]]):
        for seed in range(2):
            params = [replace(samplings[row % len(samplings)], seed=row + 10 * seed) for row in range(rows)]
            with count_traffic() as traffic:
                codes, embedding = frame(network, params, seed)
            with monkeypatch.context() as patch:
                patch.setattr(network, "graphs", None)
                expected = frame(network, params, seed)
            assert torch.equal(codes, expected[0])
            torch.testing.assert_close(embedding.cpu(), expected[1].cpu(), rtol=0, atol=1e-5)
        assert sum(traffic.to_device.values()) == 2, "one copies the hidden states of this test"
        assert sum(traffic.to_host.values()) == 1
        launches = [line for line in traffic.kernels.elements() if "device_graphs" in line]
        assert len(launches) == 2, "the copy and the graph"
    assert {entries for size, entries in network.graphs.graphs if size == padded_size(rows)} >= {GREEDY, 0, 64}
    weights = []
    for graph in network.graphs.graphs.values():
        own = {memory_id(graph.buffer), memory_id(graph.results[0])}
        weights.append({*map(memory_id, graph.graph.inputs)} - own)
    assert all(read == weights[0] for read in weights)


def test_the_memory_of_graphs_is_reserved_when_a_network_is_loaded():
    with with_memory(64_000_000):
        memory = open_memory(pretend_gpu(), 0.5, max_batched_tokens=64, max_batch_size=16)
        network = CodePredictor(
            CONFIG, {name: one.to(pretend_gpu()) for name, one in tensors(SHAPE, torch.float32).items()}
        )
        before = memory.used
        capture_largest(network, memory)
        assert [*network.graphs.graphs] == [(16, 0)]
        reserved = memory.used - before
        assert reserved > 100_000
        with torch.inference_mode():
            for rows in (1, 7, 16):
                frame(network, [MIXED[1]] * rows)
        assert memory.used - before < 1.1 * reserved, "graphs share their memory"


@torch.inference_mode()
def test_rows_that_fail_are_reported(networks):
    network = networks[0]
    nothing = Sampling(allowed_ranges=((CODES, CODES + 1),))
    with pytest.raises(RowsFailed) as failed:
        frame(network, [Sampling(), nothing])
    assert {row: type(error) for row, error in failed.value.errors.items()} == {1: BadSampling}
    first, hidden = torch.zeros((2, 1), dtype=torch.int64), torch.ones(2, SHAPE["width"])
    hidden[0, 0] = torch.nan
    with pytest.raises(RowsFailed) as failed:
        sample_frames(network, first, hidden.to(pretend_gpu()), [Sampling()] * 2)
    assert {row: type(error) for row, error in failed.value.errors.items()} == {0: NotFinite}
