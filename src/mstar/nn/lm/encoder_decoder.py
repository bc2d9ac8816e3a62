"""EncoderDecoder: runs a transformers encoder-decoder on ragged batches, with a paged KV cache for cross-attention too.

It is the torch part of `Seq2SeqLM`: a `Decoder` whose tokens also attend to the encoder states of their request. The
network runs unmodified, or captured, from the graph cache. Mel features and detokenization are not part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from mstar.errors import MstarError, RowsFailed
from mstar.nn.compile.seq2seq_cache import FlatSeq2Seq
from mstar.nn.kv.cross_attention import CROSS_ATTENTION, CrossAttentionKV, reading_cross_kv, recording_queries
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.kv.paged_attention import AttentionBatch, AttentionView, extend_caches, write_keys_values
from mstar.nn.lm.decoder import Decoder
from mstar.nn.lm.grammar import Vocabulary
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.staging import to_device


class CacheNotReady(MstarError):
    """A KV cache is not in the state that an op needs."""


class EncoderDecoder(Decoder):
    """An encoder, a decoder with paged attention, and its KV cache."""

    attention: ClassVar[str] = CROSS_ATTENTION
    captures_steps = False
    sizes_pages: ClassVar[bool] = False

    def __init__(self, network: Any, pool: PagePool, *, swap_bytes: int, window: int | None = None) -> None:
        if isinstance(network, FlatSeq2Seq):
            self._network: Any = network
            decoder: Any = network.decoder
        else:
            self._network = self._split(network, window)
            decoder = self._network.decoder_half
        self._max_target_positions: int = self._network.max_target_positions
        self.window_positions: int = self._network.window_positions
        """Number of encoder positions of a complete audio window."""
        super().__init__(decoder, pool, swap_bytes=swap_bytes, is_deterministic=False)

    def _split(self, network: Any, window: int | None) -> Any:
        """The halves of a network that is not captured, with the attributes of an EagerSeq2Seq."""
        from mstar.nn.lm.eager_seq2seq import EagerSeq2Seq  # imports transformers

        return EagerSeq2Seq(network, window)

    def new_cache(self, vocabulary: Vocabulary | None) -> CrossAttentionKV:
        """Create an empty KV cache."""
        return CrossAttentionKV(self.store, SamplerState(vocabulary))

    @property
    def nondeterminism(self) -> str:
        """Why a result can depend on the other requests of a batch; empty if it cannot."""
        if reason := super().nondeterminism:
            return reason
        is_captured = isinstance(self._network, FlatSeq2Seq)
        return (
            "" if is_captured else "it is not in the graph cache, so torch computes keys and values of cross-attention"
        )

    @torch.inference_mode()
    def encode(self, features: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """Encode a ragged batch of spectrograms, [bins, frames], to hidden states, [positions, size] each.

        One after the other: the activations of one just fit into the CPU cache, so a batch is slower.
        """
        parts = features.to(self._embed.weight.dtype).split(list(lengths), dim=1)
        return [self._network.encode(part[None])[0] for part in parts]

    @torch.inference_mode()
    def write_encoder_states(self, states: Tensor, caches: Sequence[CrossAttentionKV], counts: Sequence[int]) -> None:
        """Write the cross-attention keys and values of a ragged batch of encoder states, before the first token."""
        _raise_not_ready([_already_decoding(cache.table.length) for cache in caches])
        for cache, part in zip(caches, states.split(list(counts)), strict=True):
            cache.cross_attention_cache.append_embeddings(part.clone())  # a view would keep the whole batch alive
        self._write_cross_kv(states, [cache.cross_attention_cache for cache in caches], counts)

    @torch.inference_mode()
    def cross_attention_scores(
        self,
        tokens: Tensor,
        caches: Sequence[CrossAttentionKV],
        lengths: Sequence[int],
        positions: Sequence[int],
        heads: Sequence[tuple[int, int]],
    ) -> list[Tensor]:
        """Scores before the softmax, [heads, tokens, positions], of a ragged batch that is read from the start again.

        `positions` is the number of encoder positions of each request, `heads` are pairs of layer and head (default:
        all heads of the second half of the layers). The caches are not changed. The attention kernels do not return
        scores, so they are computed from recorded queries.
        """
        forks = [cache.fork() for cache in caches]
        try:
            for fork in forks:
                self.store.pool.truncate(fork.table, 0)
                self._write_forgotten(fork)
            batch = extend_caches(self.store, forks, lengths)
            tokens, last = batch.move(self.device, tokens, torch.tensor([0]))
            with recording_queries() as queries:
                self._run(self.embed(tokens), batch, last)
            half = range(len(queries) // 2, len(queries))
            heads = heads or [(layer, head) for layer in half for head in range(len(queries[layer]))]
            parts = {layer: query.split(list(lengths), dim=1) for layer, query in queries.items()}
            results = list[Tensor]()
            for row, fork in enumerate(forks):
                places = self.store.places(fork.cross_attention_cache.table.pages, 0, positions[row]).to(self.device)
                scores = [
                    parts[layer][row][head].float() @ self.store.keys[layer][places, head].float().mT
                    for layer, head in heads
                ]
                results.append(torch.stack(scores))
            return results
        finally:
            for fork in forks:
                fork.free()

    def _write_forgotten(self, cache: CrossAttentionKV) -> None:
        """Compute the keys and values of all encoder states of a cache again, if some were released."""
        if cache.forgettings:
            cache.cross_attention_cache.store.pool.truncate(cache.cross_attention_cache.table, 0)
            cache.forgettings = []
            for states in cache.kept_encoder_states():
                self._write_cross_kv(states, [cache.cross_attention_cache], [len(states)])

    @torch.inference_mode()
    def restore(self, caches: Sequence[PagedKV]) -> None:
        """Swap evicted caches back in, or recompute the ones whose data was dropped."""
        for cache in cast("Sequence[CrossAttentionKV]", caches):
            is_dropped, is_cross_dropped = cache.is_dropped, cache.cross_attention_cache.is_dropped
            cache.restore()
            try:
                if is_cross_dropped:
                    cache.cross_attention_cache.store.pool.truncate(cache.cross_attention_cache.table, 0)
                    for states in cache.kept_encoder_states():
                        self._write_cross_kv(states, [cache.cross_attention_cache], [len(states)])
                if is_dropped:
                    self._recompute(cache)
            except BaseException:
                self.store.drop(cache)
                cache.cross_attention_cache.store.drop(cache.cross_attention_cache)
                raise

    def _recompute(self, cache: PagedKV) -> None:
        """Recompute a dropped cache: each token reads the encoder positions that there were when it was read."""
        cross_cache = cast("CrossAttentionKV", cache)
        length, forgettings = cache.table.length, [*cross_cache.forgettings]
        embeddings = self._lineage_embeddings(cache)
        try:
            self._write_forgotten(cross_cache)
            self.store.release(cache)
            for tokens, positions in forgettings:
                self._append_again(cache, embeddings[cache.table.length : tokens])
                cross_cache.forget_encoder_states(positions)
            self._append_again(cache, embeddings[cache.table.length : length])
        except BaseException:
            cross_cache.forgettings = forgettings  # for the next attempt
            raise

    def _write_cross_kv(self, states: Tensor, cross_caches: Sequence[PagedKV], counts: Sequence[int]) -> None:
        batch = extend_caches(cross_caches[0].store, cross_caches, counts)
        batch.move(self.device)
        layers = self._network.cross_keys_values(states[None].to(self._embed.weight))
        for layer, (keys, values) in enumerate(layers):
            write_keys_values(batch, keys, values, layer)

    def _record_inputs(self, inputs: Tensor, caches: Sequence[PagedKV], lengths: Sequence[int]) -> None:
        cross_caches = cast("Sequence[CrossAttentionKV]", caches)
        _raise_not_ready([self._not_ready(cache, length) for cache, length in zip(cross_caches, lengths, strict=True)])
        super()._record_inputs(inputs, caches, lengths)

    def _not_ready(self, cache: CrossAttentionKV, count: int) -> str:
        """The reason why a cache cannot read this number of tokens, or an empty string."""
        if not cache.cross_attention_cache.table.length:
            return "the KV cache has no encoder states\n  fix: call write_encoder_states first"
        if cache.table.length + count > self._max_target_positions:
            counts = f"{cache.table.length} tokens in the KV cache and {count} more"
            problem = f"too many tokens: {counts}, limit {self._max_target_positions}"
            return f"{problem}\n  fix: set a smaller max_tokens, or start with a shorter prompt"
        return ""

    def _run(self, embeddings: Tensor, batch: AttentionBatch, last: Tensor) -> tuple[Tensor, Tensor]:
        cross_caches = [cache.cross_attention_cache for cache in cast("Sequence[CrossAttentionKV]", batch.caches)]
        view = AttentionView(batch.store.cross_attention, cross_caches, batch.counts)
        if self.device.type != "cpu":
            _move(view, self.device)
        with reading_cross_kv(view):
            return super()._run(embeddings, batch, last)

    def _trial_cache(self, store: KVStore) -> PagedKV:
        cache = CrossAttentionKV(store, SamplerState())
        self._write_cross_kv(self._trial_states(), [cache.cross_attention_cache], [1])
        return cache

    def _trial_states(self) -> Tensor:
        """Encoder states of one position, for trial runs."""
        return self.embed(torch.tensor([0]))


def _move(view: AttentionView, device: torch.device) -> None:
    """Copy what cross-attention reads of a batch to the device of the network, together."""
    arrays = [array.numpy() for part in view.plan for array in part.arrays]
    moved = iter(to_device(arrays, device))
    for part in view.plan:
        part.arrays = tuple(next(moved) for _ in part.arrays)


def _already_decoding(tokens: int) -> str:
    fix = "write all encoder states before the first token, or use a new KV cache"
    return (
        f"the KV cache already has {tokens} tokens, so no encoder states can be added\n  fix: {fix}" if tokens else ""
    )


def _raise_not_ready(reasons: Sequence[str]) -> None:
    if any(reasons):
        raise RowsFailed({row: CacheNotReady(reason) for row, reason in enumerate(reasons) if reason})
