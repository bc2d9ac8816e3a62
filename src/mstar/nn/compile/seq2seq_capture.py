"""Graph capture of encoder-decoders: see `mstar.nn.compile.seq2seq_cache`. Imports torch.export and transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from mstar.nn.compile.graph_capture import capture, capture_plain
from mstar.nn.compile.graph_file import GraphsToStore
from mstar.nn.lm.eager_seq2seq import EagerSeq2Seq, encode_beginning, frames_per_position, project_cross_kv

_EXAMPLE_POSITIONS = 7


class _EncoderForward(torch.nn.Module):
    """Spectrogram to hidden states."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, features: Tensor) -> tuple[Tensor]:
        return (encode_beginning(self.encoder, features),)


class _CrossProjection(torch.nn.Module):
    """Encoder states to keys and values of all layers, one after the other."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, states: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor for layer in project_cross_kv(self.decoder, states) for tensor in layer)


def capture_seq2seq(eager: EagerSeq2Seq) -> GraphsToStore:
    """The graphs, the embedding and the sizes of a network. Raises the error of torch.export."""
    embedding = eager.decoder_half.get_input_embeddings().weight
    ratio, bins = frames_per_position(eager.encoder), eager.encoder.conv1.in_channels
    size, dtype = eager.decoder_half.config.d_model, embedding.dtype
    positions = Dim("positions", min=2, max=eager.window_positions)
    encoder = capture_plain(
        _EncoderForward(eager.encoder),
        torch.zeros((1, bins, _EXAMPLE_POSITIONS * ratio), dtype=dtype),
        {2: ratio * positions},
    )
    cross = capture_plain(
        _CrossProjection(eager.decoder_half.decoder),
        torch.zeros((1, _EXAMPLE_POSITIONS, size), dtype=dtype),
        {1: Dim("states", min=1, max=1 << 20)},
        is_packed=True,
    )
    decoder = capture(eager.decoder_half)
    numbers = {
        "layers": eager.decoder_half.config.num_hidden_layers,
        "window": decoder[0].window,
        "bins": bins,
        "frames_per_position": ratio,
        "max_target_positions": eager.max_target_positions,
        "window_positions": eager.window_positions,
    }
    return GraphsToStore([encoder, cross, decoder], [embedding], numbers)
