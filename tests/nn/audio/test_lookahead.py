"""Sound of networks that look ahead: pieces are the whole, and each part of it is heard as soon as it is certain."""

import random
import warnings

import pytest
import torch
import transformers as t

from mstar.nn.audio.lookahead import make_lookahead_streaming
from mstar.nn.audio.streaming import StreamingState, streaming

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it scripts a function as it is imported
    from snac import SNAC

DAC = {"encoder_hidden_size": 2, "downsampling_ratios": [2, 3], "decoder_hidden_size": 16, "upsampling_ratios": [3, 2]}


def snac():
    sizes = {"encoder_dim": 2, "encoder_rates": [2, 3], "decoder_dim": 16, "decoder_rates": [3, 2], "noise": False}
    return SNAC(**sizes, attn_window_size=None, codebook_size=16, vq_strides=[2, 1]).decoder


def dac():
    return t.DacModel(t.DacConfig(**DAC, codebook_size=16, n_codebooks=2)).decoder


DECODERS = {"snac": (snac, 8), "dac": (dac, 8)}


@pytest.fixture(params=DECODERS)
def decoder(request):
    make, width = DECODERS[request.param]
    torch.manual_seed(0)
    with torch.inference_mode():
        yield make().eval(), torch.randn(3, width, 90)


def run_in_chunks(network, given, sizes):
    memories, pieces, at = [{} for _ in given], [], 0
    for number, size in enumerate(sizes):
        past = StreamingState(memories, is_last=number == len(sizes) - 1)
        with streaming(past):
            pieces.append(network(given[..., at : at + size]))
        memories, at = [past.memory(row) for row in range(len(given))], at + size
    return pieces


def test_pieces_of_any_size_are_the_whole(decoder):
    network, given = decoder
    wanted, chosen = network(given), random.Random(1)
    make_lookahead_streaming(network)
    torch.testing.assert_close(network(given), wanted, msg="a network that is not following does as it did")
    sizes = [40]
    while sum(sizes) < given.shape[-1]:
        sizes.append(min(chosen.randint(1, 9), given.shape[-1] - sum(sizes)))
    for ends in ([], [0]):
        pieces = run_in_chunks(network, given, sizes + ends)
        torch.testing.assert_close(torch.cat(pieces, -1), wanted)
    assert [piece.shape[-1] for piece in pieces[1:-1]] == [6 * size for size in sizes[1:]]


def test_output_is_emitted_as_soon_as_it_is_final(decoder):
    network, given = decoder[0].double(), decoder[1].double()
    make_lookahead_streaming(network)
    (audio, _) = run_in_chunks(network, given[..., :41], [40, 1])
    far = 1e15  # layers that hardly look ahead do so all the same
    one, other = (network(torch.cat([given[..., :40], after * given[..., 40:]], -1)) for after in (far, -far))
    assert audio.shape[-1] == int((one != other).any(1).any(0).nonzero()[0])
