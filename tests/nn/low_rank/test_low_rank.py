"""Encoders of lower rank: exact where a network has that rank, smaller, saved and loaded as a checkpoint."""

import copy
import json

import pytest
import torch
import transformers as t

from mstar.errors import LoadError
from mstar.nn.low_rank.compress import compress_encoder, count_parameters
from mstar.nn.low_rank.factors import rank_of
from mstar.nn.weights.sources import Weights

FRAMES, RANK = 80, 8
HEADS, SIZE = 2, 32
CONFIG = t.WhisperConfig(
    vocab_size=20,
    num_mel_bins=16,
    d_model=HEADS * SIZE,
    encoder_layers=2,
    decoder_layers=1,
    encoder_attention_heads=HEADS,
    decoder_attention_heads=HEADS,
    encoder_ffn_dim=128,
    decoder_ffn_dim=32,
    max_source_positions=FRAMES // 2,
    pad_token_id=1,
    bos_token_id=1,
    eos_token_id=1,
    decoder_start_token_id=1,
)


def low_rank(rows, columns, rank=RANK):
    return torch.randn(rows, rank) @ torch.randn(rank, columns) / (rank * columns) ** 0.5


def new_network():
    """A network whose layers have a low rank, and whose heads use a part of their dimensions."""
    torch.manual_seed(1)
    network = t.WhisperForConditionalGeneration(copy.deepcopy(CONFIG)).eval()  # compression changes it
    for layer in network.get_encoder().layers:
        for linear in (layer.fc1, layer.fc2):
            linear.weight.data = 3 * low_rank(*linear.weight.shape)
            linear.bias.data.normal_(std=0.5)
        attention = layer.self_attn
        for part in (attention.q_proj, attention.k_proj, attention.v_proj):
            part.weight.data = torch.cat([3 * low_rank(SIZE, CONFIG.d_model) for _ in range(HEADS)])
            if part.bias is not None:
                part.bias.data.normal_(std=0.5)
        attention.out_proj.bias.data.normal_(std=0.5)
    return network


def inputs(count=6):
    torch.manual_seed(2)
    return [torch.randn(1, CONFIG.num_mel_bins, FRAMES) for _ in range(count)]


@pytest.fixture(scope="module")
def compressed():
    network = new_network()
    return network, compress_encoder(network, inputs(), 0.99999)


def encode(network, features):
    with torch.inference_mode():
        return network.get_encoder()(features).last_hidden_state


def test_what_has_a_low_rank_is_compressed_without_loss(compressed):
    network, ranks = compressed
    original, unseen = new_network(), torch.randn(1, CONFIG.num_mel_bins, FRAMES)
    layers = [f"model.encoder.layers.{number}" for number in range(2)]
    assert ranks.heads == {f"{layer}.self_attn": 16 for layer in layers}
    assert {f"{layer}.{part}": RANK for layer in layers for part in ("fc1", "fc2")} == ranks.linears
    expected = encode(original, unseen)
    assert (encode(network, unseen) - expected).abs().max() < 0.01 * expected.abs().max()
    assert count_parameters(network.get_encoder()) < 0.6 * count_parameters(original.get_encoder())


def test_less_energy_is_smaller_and_less_exact(compressed):
    network, expected = new_network(), encode(new_network(), inputs()[0])
    ranks = compress_encoder(network, inputs(), 0.5)
    assert all(rank < RANK for rank in ranks.linears.values())
    errors = [(encode(one, inputs()[0]) - expected).norm() for one in (compressed[0], network)]
    assert errors[0] < 0.1 * errors[1]


def test_a_network_of_full_rank_stays_as_it_is():
    torch.manual_seed(3)
    network = t.WhisperForConditionalGeneration(copy.deepcopy(CONFIG)).eval()
    expected = encode(network, inputs()[0])
    ranks = compress_encoder(network, inputs(), 1.0)
    assert (ranks.linears, ranks.heads) == ({}, {})
    assert torch.equal(encode(network, inputs()[0]), expected)


def test_a_compressed_network_is_an_ordinary_checkpoint(compressed, tmp_path):
    network, ranks = compressed
    network.save_pretrained(tmp_path)
    loaded = Weights(str(tmp_path)).network()
    assert loaded.config.low_rank == ranks.to_config()
    assert torch.equal(encode(loaded, inputs()[0]), encode(network, inputs()[0]))
    assert network.config.low_rank is not None
    features, tokens = inputs()[0], torch.tensor([[1, 5, 7]])
    with torch.inference_mode():
        outputs = [one(features, decoder_input_ids=tokens).logits for one in (loaded, network)]
    assert torch.equal(*outputs)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"linears": {"model.encoder.layers.7.fc1": 4}}, "low_rank does not fit WhisperForConditionalGeneration"),
        ({"linears": {"model.encoder.layers.0.fc1": 4}}, "the weights do not match"),
        ({"ranks": 4}, "low_rank does not fit WhisperForConditionalGeneration"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(compressed, tmp_path, changed, problem):
    compressed[0].save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"low_rank": changed}))
    with pytest.raises(LoadError, match=rf"{problem}[\s\S]*fix: "):
        Weights(str(tmp_path)).network()


def test_a_compressed_encoder_runs_on_the_beginning_of_a_window(compressed):
    from mstar.nn.lm.eager_seq2seq import EagerSeq2Seq

    network = EagerSeq2Seq(copy.deepcopy(compressed[0]), None)
    with torch.inference_mode():
        assert network.encode(inputs()[0][:, :, :40]).shape == (1, 20, CONFIG.d_model)


def test_ranks_by_energy():
    variances = torch.tensor([8.0, 1.0, 1.0, 0.0])
    assert [rank_of(variances, energy) for energy in (0.5, 0.8, 0.81, 0.9, 1.0)] == [1, 1, 2, 2, 3]
