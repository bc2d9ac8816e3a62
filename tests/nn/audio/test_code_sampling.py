"""Sampling of the codes of a frame: on a pretend GPU the codes of the CPU, and the rows that fail are reported."""

import pytest
import torch

from mstar.errors import NotFinite, RowsFailed
from mstar.nn.audio.code_predictor import CodePredictor
from mstar.nn.audio.code_sampling import sample_frames
from mstar.nn.pretend_gpu import count_traffic, pretend_gpu
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


def frame(network, samplings):
    torch.manual_seed(1)
    first, hidden = torch.randint(0, CODES, (len(samplings), 1)), torch.randn(len(samplings), SHAPE["width"])
    return sample_frames(network, first, hidden.to(network.device), samplings)


@torch.inference_mode()
@pytest.mark.parametrize("samplings", [[Sampling()] * 3, MIXED, MIXED[1:3]], ids=["greedy", "mixed", "drawn"])
def test_codes_are_those_of_the_cpu(networks, samplings):
    with count_traffic() as traffic:
        codes, embedding = frame(networks[0], samplings)
    expected, expected_embedding = frame(networks[1], samplings)
    assert torch.equal(codes, expected)
    torch.testing.assert_close(embedding.cpu(), expected_embedding, rtol=0, atol=1e-4)
    assert sum(traffic.syncs.values()) == 2, "one copies the hidden states of this test"
    assert len(codes.unique()) > 4


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
