"""EagerSeq2Seq: the halves of a transformers encoder-decoder, which `EncoderDecoder` runs or graph capture reads.

The network runs unmodified. Its cross-attention reads the KV cache (`mstar.nn.kv.cross_attention_interface`).
"""

from __future__ import annotations

import copy
import inspect
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mstar.errors import LoadError
from mstar.nn.kv import cross_attention_interface
from mstar.nn.kv.cross_attention import CROSS_ATTENTION, KeysValues, collecting_cross_kv

_ = cross_attention_interface  # registers paged cross-attention with transformers


class DecoderHalf(torch.nn.Module):
    """The decoder of an encoder-decoder, with the interface of a decoder-only model.

    Its cross-attention gets no encoder states: their keys and values are in the KV cache.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.decoder = network.get_decoder()
        if "position_ids" not in inspect.signature(self.decoder.forward).parameters:
            problem = f"{type(self.decoder).__name__} has no parameter position_ids, so requests cannot be batched"
            raise LoadError(f"{problem}\n  fix: use a model of another family, such as Whisper")
        self.head = network.get_output_embeddings()
        self.get_input_embeddings = self.decoder.get_input_embeddings
        self.config = copy.copy(network.config)  # the encoder keeps its own attention
        self.config.num_hidden_layers = network.config.decoder_layers  # it was the number of encoder layers
        for module in self.decoder.modules():
            if hasattr(module, "config"):
                module.config = self.config

    def forward(self, inputs_embeds: Tensor, position_ids: Tensor, logits_to_keep: Tensor, **_: Any) -> SimpleNamespace:
        """Logits of the selected tokens, and all hidden states."""
        hidden = self.decoder(
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            encoder_hidden_states=inputs_embeds[:, :0],
            use_cache=False,
        ).last_hidden_state
        return SimpleNamespace(logits=self.head(hidden[:, logits_to_keep]), hidden_states=(hidden,))


class EagerSeq2Seq:
    """Encoder, cross-attention and decoder of a network. `window` is the sliding window of its self-attention."""

    def __init__(self, network: Any, window: int | None) -> None:
        self.encoder = network.eval().requires_grad_(requires_grad=False).get_encoder()
        self.decoder_half = DecoderHalf(network)
        self.decoder_half.config.sliding_window = window  # read by cross_attention_forward
        self.decoder_half.config._attn_implementation = CROSS_ATTENTION
        self.max_target_positions: int = network.config.max_target_positions
        self.window_positions: int = network.config.max_source_positions

    def encode(self, features: Tensor) -> Tensor:
        """[1, bins, frames], a window or its beginning, to [1, positions, size]."""
        if features.shape[2] // frames_per_position(self.encoder) < self.window_positions:
            return encode_beginning(self.encoder, features)
        return self.encoder(features).last_hidden_state

    def cross_keys_values(self, states: Tensor) -> list[KeysValues]:
        """Cross-attention keys and values of encoder states, [1, positions, size], by layer."""
        return project_cross_kv(self.decoder_half.decoder, states)


def project_cross_kv(decoder: Any, states: Tensor) -> list[KeysValues]:
    """Run a dummy token with these encoder states, so that every layer computes its keys and values of them."""
    with collecting_cross_kv() as collected:
        decoder(
            inputs_embeds=states[:, :1],
            position_ids=torch.zeros((1, 1), dtype=torch.int64, device=states.device),
            encoder_hidden_states=states,
            use_cache=False,
        )
    return [collected[layer] for layer in range(len(collected))]


def frames_per_position(encoder: Any) -> int:
    """Number of spectrogram frames of an encoder position."""
    return encoder.conv1.stride[0] * encoder.conv2.stride[0]


def encode_beginning(encoder: Any, features: Tensor) -> Tensor:
    """Encode a spectrogram that is shorter than a window, with the first positions only."""
    positions = features.shape[2] // frames_per_position(encoder)
    shortened = copy.copy(encoder)
    shortened.config = copy.copy(encoder.config)
    vars(shortened.config)["max_source_positions"] = positions  # symbolic during capture, which the setter rejects
    shortened._modules = encoder._modules | {"embed_positions": _FirstPositions(encoder.embed_positions, positions)}
    return shortened(features).last_hidden_state


class _FirstPositions(torch.nn.Module):
    """The first rows of a table of position embeddings."""

    def __init__(self, table: torch.nn.Embedding, count: int) -> None:
        super().__init__()
        self.table = table
        self.num_embeddings = count

    def forward(self, positions: Tensor) -> Tensor:
        return self.table(positions)
