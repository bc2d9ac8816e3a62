"""FrameDecoder: the decoder of Dia on batches of requests, with paged caches for self- and cross-attention.

It is the torch part of `code_decoder`. A position is a frame of codes. Self-attention has fewer heads for keys than
cross-attention, so each has pages of its own. The layers are those of transformers. Imports torch and transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mstar.models.dia.checkpoint import MAX_DELAY
from mstar.nn.kv.cross_attention import KeysValues
from mstar.nn.kv.cross_attention_interface import cross_attention_forward
from mstar.nn.kv.kv_cache import PagedKV
from mstar.nn.kv.paged_attention import PAGED_ATTENTION, extend_caches
from mstar.nn.lm.encoder_decoder import EncoderDecoder


class FrameDecoder(EncoderDecoder):
    """The decoder, its head and its KV caches."""

    attention: ClassVar[str] = PAGED_ATTENTION
    pages_per_cross_page: ClassVar[int] = 4  # a text has fewer positions, and each needs four times the memory

    def _split(self, network: Any, window: int | None) -> _Halves:  # noqa: ARG002 - it has no window
        return _Halves(network.eval().requires_grad_(requires_grad=False))

    @property
    def nondeterminism(self) -> str:
        """Why a result can depend on the other requests of a batch. Each text has keys and values computed alone."""
        return super(EncoderDecoder, self).nondeterminism

    def embed(self, tokens: Tensor) -> Tensor:
        """[frames, channels] of codes to [frames, size]. Embeddings and single tokens are those of any decoder."""
        if tokens.ndim == 1 or tokens.is_floating_point():
            return super().embed(tokens)
        tokens = tokens.to(self.device)
        first = torch.arange(tokens.shape[1], device=self.device) * (len(self._embed.weight) // tokens.shape[1])
        return self._embed(tokens + first).sum(1)

    def _trial_states(self) -> Tensor:
        return self._embed.weight.new_ones((1, self._network.state_size))

    @torch.inference_mode()
    def next_scores(self, frames: Tensor, caches: Sequence[PagedKV]) -> Tensor:
        """Append a frame of codes, [rows, channels], to each cache. Returns scores, [rows, channels, codes]."""
        counts = [1] * len(caches)
        self._record_inputs(frames, caches, counts)
        batch = extend_caches(self.store, caches, counts)
        frames, last = batch.move(self.device, frames, torch.arange(len(caches)))
        logits, _ = self._run(self.embed(frames), batch, last)
        return logits.unflatten(1, (frames.shape[1], -1)).float()

    def require_capacity(self, states: Sequence[int], frames: int) -> None:
        """Raise NeverFits unless caches with these numbers of encoder states can have this number of frames each."""
        pool = self.store.pool
        pool.require_capacity(len(states) * -(-frames // pool.page_size))
        self.store.cross_attention.pool.require_capacity(sum(-(-count // pool.page_size) for count in states))


class _Halves:
    """What `EncoderDecoder` runs of a network: the decoder, and the projections of cross-attention."""

    def __init__(self, network: Any) -> None:
        self.decoder_half = _DecoderHalf(network)
        config = network.config.decoder_config
        self.max_target_positions: int = config.max_position_embeddings + MAX_DELAY
        self.window_positions = network.config.encoder_config.max_position_embeddings
        self.state_size: int = config.cross_hidden_size

    def cross_keys_values(self, states: Tensor) -> list[KeysValues]:
        """Keys and values of encoder states, [1, positions, size], by layer."""
        layers = [layer.cross_attention for layer in self.decoder_half.decoder.layers]
        return [
            (_heads(layer.k_proj(states), layer.head_dim), _heads(layer.v_proj(states), layer.head_dim))
            for layer in layers
        ]


class _DecoderHalf(torch.nn.Module):
    """The decoder with the interface of a decoder-only model: the keys of encoder states are in the KV cache."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.decoder = network.model.decoder
        self.head = network.logits_dense
        self.config = self.decoder.config
        embeddings = self.decoder.embeddings.embed  # of the codes of all channels, one after the other
        self.get_input_embeddings = lambda: embeddings

    def forward(self, inputs_embeds: Tensor, position_ids: Tensor, logits_to_keep: Tensor, **_: Any) -> SimpleNamespace:
        """Logits of the selected positions, for all channels, and all hidden states."""
        hidden = inputs_embeds
        rotary = self.decoder.rotary_emb(hidden, position_ids=position_ids)
        for layer in self.decoder.layers:
            hidden = hidden + layer.self_attention(layer.pre_sa_norm(hidden), rotary)[0]
            hidden = hidden + _attend_text(layer.cross_attention, layer.pre_ca_norm(hidden))
            hidden = hidden + layer.mlp(layer.pre_mlp_norm(hidden))
        hidden = self.decoder.norm(hidden)
        return SimpleNamespace(logits=self.head(hidden[:, logits_to_keep]), hidden_states=(hidden,))


def _attend_text(layer: Any, hidden: Tensor) -> Tensor:
    """Cross-attention of a layer, which reads its keys and values from the cache."""
    query = _heads(layer.q_proj(hidden), layer.head_dim)
    attended, _ = cross_attention_forward(layer, query, query, query, None, float(layer.scaling))
    return layer.o_proj(attended.flatten(2))


def _heads(projected: Tensor, size: int) -> Tensor:
    """[1, positions, heads * size] to [1, heads, positions, size]."""
    return projected.unflatten(2, (-1, size)).transpose(1, 2)
