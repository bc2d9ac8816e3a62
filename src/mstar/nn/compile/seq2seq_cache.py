"""Graph cache of encoder-decoders: encoder, cross-attention projections and decoder, captured as three graphs.

See `mstar.nn.compile.graph_cache` for keys, trial runs and failures. The encoder is captured for any number of
positions up to a complete window.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Embedding

from mstar.nn.compile.flat_graph import NotEncodable
from mstar.nn.compile.graph_cache import FlatNetwork, Forward, entry_path, read_existing
from mstar.nn.compile.graph_file import StoredGraphs, log, read_graphs, write_graphs
from mstar.nn.kv.cross_attention import CrossAttentionKV, KeysValues, reading_cross_kv
from mstar.nn.kv.kv_cache import KVStore
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.kv.paged_attention import AttentionView, extend_caches, running, write_keys_values
from mstar.nn.lm.decoder_check import check_decoder
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.one_thread import one_thread

_TRIAL_POSITIONS = 5
"""Encoder positions of a trial run."""
_TRIAL_LENGTHS = (3, 1)
"""Tokens of the two decoder forwards of a trial run."""


class Seq2SeqParts(Protocol):
    """Encoder and cross-attention projections."""

    def encode(self, features: Tensor) -> Tensor:
        """[1, bins, frames] to [1, positions, size]."""
        ...

    def cross_keys_values(self, states: Tensor) -> list[KeysValues]:
        """Keys and values of encoder states, [1, positions, size], by layer."""
        ...


@dataclass(frozen=True, slots=True)
class FlatSeq2Seq:
    """A captured encoder-decoder with its weights, in place of a transformers model."""

    functions: tuple[Callable[..., Any], Callable[..., Any]]
    """The captured encoder and cross-attention projections."""
    decoder: FlatNetwork
    bins: int
    frames_per_position: int
    max_target_positions: int
    window_positions: int

    def encode(self, features: Tensor) -> Tensor:
        """[1, bins, frames], a window or its beginning, to [1, positions, size]."""
        return self.functions[0](features)[0]

    def cross_keys_values(self, states: Tensor) -> list[KeysValues]:
        """Cross-attention keys and values of encoder states, [1, positions, size], by layer."""
        flat = self.functions[1](states)
        return list(zip(flat[::2], flat[1::2], strict=True))


def load_or_capture_seq2seq(checksum: str, load: Callable[[], Any], window: int | None) -> Any:
    """The network of these weights: a FlatSeq2Seq from the cache, or else the captured one of `load`, which is saved.

    Returns the transformers model if it cannot be captured or stored.
    """
    path = _path(checksum, window)
    if path is None:
        return load()
    if (cached := read_existing(path, read_seq2seq)) is not None:
        return cached
    from mstar.nn.compile.graph_capture import eager_forward
    from mstar.nn.compile.seq2seq_capture import capture_seq2seq
    from mstar.nn.lm.eager_seq2seq import EagerSeq2Seq

    network = load()
    eager = EagerSeq2Seq(network, window)
    embedding = eager.decoder_half.get_input_embeddings()
    if embedding.weight.device.type != "cpu":
        return network
    try:
        content = capture_seq2seq(eager)
    except Exception as error:  # noqa: BLE001 - torch.export raises many kinds; the network runs as before
        log.warning("the network is not cached, so every start captures it: %s", str(error).partition("\n")[0])
        return network
    forward, layers = eager_forward(eager.decoder_half), content.numbers["layers"] or 0
    _check(eager, forward, type(network).__name__, embedding, layers)
    sizes = content.numbers["bins"] or 0, content.numbers["frames_per_position"] or 0
    expected = _trial_run(eager, forward, embedding, layers, sizes)
    try:
        return _to_network(write_graphs(path, content, _trial_run_of, expected))
    except (OSError, NotEncodable) as error:
        log.warning("the captured graph is not cached, so every start captures it: %s", error)
        return network


@torch.inference_mode()
def _check(parts: Seq2SeqParts, forward: Forward, family: str, embedding: Embedding, layers: int) -> None:
    """Reject a network that chunked prefill or batching would change."""
    store = KVStore(PagePool(16, 4), layers, swap_bytes=0)

    def new_cache() -> CrossAttentionKV:
        cache = CrossAttentionKV(store, SamplerState())
        _write_cross_kv(parts, cache, embedding(torch.tensor([[0]])))
        return cache

    def run(tokens: Sequence[Tensor], caches: Sequence[CrossAttentionKV]) -> Sequence[Tensor]:
        counts = [len(part) for part in tokens]
        return _forward_tokens(forward, embedding, torch.cat(list(tokens)), caches, counts)[1].split(counts)

    check_decoder(family, embedding.weight, run, new_cache)


def preload_seq2seq(checksum: str, window: int | None) -> None:
    """Map the entry of these weights, if there is one, for a later `load_or_capture_seq2seq` in this process."""
    path = _path(checksum, window)
    if path is not None:
        read_existing(path, read_seq2seq)


def _path(checksum: str, window: int | None) -> Path | None:
    return entry_path(checksum, f"seq2seq, window={window}")


@functools.lru_cache(maxsize=8)
def read_seq2seq(path: Path) -> FlatSeq2Seq | None:
    """The network of an entry; None if there is none. An entry that fails its trial run is removed."""
    stored = read_graphs(path, _trial_run_of)
    return None if stored is None else _to_network(stored)


def _to_network(stored: StoredGraphs) -> FlatSeq2Seq:
    encode, project, forward = stored.functions
    numbers = {name: number or 0 for name, number in stored.numbers.items()}
    embedding = Embedding.from_pretrained(stored.tensors[0])
    reason = next(filter(None, stored.batch_dependences[1:]), "")  # the encoder computes one request after the other
    return FlatSeq2Seq(
        (encode, project),
        FlatNetwork(forward, embedding, numbers["layers"], stored.numbers["window"], batch_dependence=reason),
        numbers["bins"],
        numbers["frames_per_position"],
        numbers["max_target_positions"],
        numbers["window_positions"],
    )


def _trial_run_of(stored: StoredGraphs) -> list[Tensor]:
    flat = _to_network(stored)
    sizes = flat.bins, flat.frames_per_position
    return _trial_run(flat, flat.decoder.forward, flat.decoder.embedding, flat.decoder.layers, sizes)


def _trial_run(
    parts: Seq2SeqParts, forward: Forward, embedding: Embedding, layers: int, sizes: tuple[int, int]
) -> list[Tensor]:
    """Encoder states, logits and hidden states of two forwards, on one thread: equal weights give equal bits."""
    bins, frames_per_position = sizes
    store = KVStore(PagePool(2, 8), layers, swap_bytes=0)
    cache = CrossAttentionKV(store, SamplerState())
    frames = _TRIAL_POSITIONS * frames_per_position
    dtype = embedding.weight.dtype
    features = torch.linspace(-1, 1, bins * frames, dtype=dtype).view(1, bins, frames)
    tokens = torch.arange(sum(_TRIAL_LENGTHS)) % len(embedding.weight)
    with one_thread(), torch.inference_mode():
        results = [parts.encode(features)]
        _write_cross_kv(parts, cache, results[0])
        for part in tokens.split(list(_TRIAL_LENGTHS)):
            results += _forward_tokens(forward, embedding, part, [cache], [len(part)])
    return results


def _write_cross_kv(parts: Seq2SeqParts, cache: CrossAttentionKV, states: Tensor) -> None:
    """Write the cross-attention keys and values of encoder states, [1, positions, size]."""
    batch = extend_caches(cache.store, [cache.cross_attention_cache], [states.shape[1]])
    for layer, (keys, values) in enumerate(parts.cross_keys_values(states)):
        write_keys_values(batch, keys, values, layer)


def _forward_tokens(
    forward: Forward, embedding: Embedding, tokens: Tensor, caches: Sequence[CrossAttentionKV], counts: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Append tokens, `counts` of each cache; return the logits of the last one and all hidden states."""
    store = caches[0].store
    batch = extend_caches(store, caches, counts)
    view = AttentionView(store, [cache.cross_attention_cache for cache in caches], counts)
    with running(batch), reading_cross_kv(view):
        return forward(embedding(tokens)[None], batch.positions[None], torch.tensor([len(tokens) - 1]))
