"""Paged-attention decoder of BAGEL: causal text, bidirectional images, and flow steps that write no KV.

An input row is an embedding, the offset of its position from its index in the cache, and a flag for latents. All tokens
of an image share one position, and the following text continues at the next one; the stored offset makes a preempted
cache recomputable. Guidance is in `guidance`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from mstar.models.bagel.mixture import Attend, Mixture
from mstar.nn.kv.kv_cache import PagedKV
from mstar.nn.kv.paged_attention import AttentionBatch, attend_pages, extend_caches, write_keys_values
from mstar.nn.lm.decoder import Decoder

_EXTRA_COLUMNS = 2
"""Columns of an input row after the embedding: position offset and latent flag."""
_IMAGE_MARKERS = 2
"""Marker tokens around an image."""


class MixtureDecoder(Decoder):
    """Runs the mixture over the KV pages of all requests."""

    _forward: Mixture

    def _captured(self, network: Mixture, *, is_int8: bool) -> tuple[Callable[..., Any], int | None]:  # noqa: ARG002
        """Run the network uncaptured: its layers call the fused kernels themselves."""
        self._scale = network.layers[0][0].size ** -0.5
        return network, None

    # ---------------------------------------------------------------- prefill
    @torch.inference_mode()
    def read_image(
        self,
        embeddings: Tensor,
        caches: list[PagedKV],
        lengths: Sequence[int],
        markers: Sequence[int],
        *,
        is_latent: bool,
    ) -> None:
        """Prefill images, given as embeddings, between their marker tokens."""
        start_marker, end_marker = pad(self._embed(torch.tensor(markers)).float(), (0, _EXTRA_COLUMNS)).split(1)
        rows: list[Tensor] = []
        for cache, image in zip(caches, embeddings.float().split(list(lengths)), strict=True):
            row = torch.cat([start_marker, pad(pad(image, (0, 1)), (0, 1), value=float(is_latent)), end_marker])
            row[:, -2] = self.position_offset(cache) - torch.arange(len(row))
            rows.append(row)
        counts = [len(row) for row in rows]
        joined = torch.cat(rows)
        self._record_inputs(joined, caches, counts)
        self._run(joined, extend_caches(self.store, caches, counts, is_causal=False), torch.tensor([0]))

    def position_offset(self, cache: PagedKV) -> float:
        """Return the offset of the next position of a cache from its length."""
        return float(cache.embeddings[-1][1][-1, -2]) if cache.embeddings else 0.0

    def _embed_inputs(self, given: Tensor, caches: Sequence[PagedKV], counts: Sequence[int]) -> Tensor:
        offsets = torch.tensor([self.position_offset(cache) for cache in caches])
        return self._embed_at(given, offsets.repeat_interleave(torch.tensor(counts)))

    def _embed_at(self, tokens: Tensor, position_offsets: Tensor) -> Tensor:
        rows = pad(self._embed(tokens).float(), (0, _EXTRA_COLUMNS))
        rows[:, -2] = position_offsets
        return rows

    def _recompute(self, cache: PagedKV) -> None:
        """Replay each part as it was read, because image tokens attend to each other in both directions."""
        parts, offset = [part for part in cache.lineage() if len(part)], torch.zeros(1)
        self.store.pool.truncate(cache.table, 0)
        for part in parts:
            is_image = part.ndim > 1
            rows = part if is_image else self._embed_at(part, offset.expand(len(part)))
            offset = rows[-1:, -2]
            self._run(rows, extend_caches(self.store, [cache], [len(rows)], is_causal=not is_image), torch.tensor([0]))

    def _run(self, embeddings: Tensor, batch: AttentionBatch, last: Tensor) -> tuple[Tensor, Tensor]:
        width, dtype = self._embed.weight.shape[1], self._embed.weight.dtype
        positions, is_latent = batch.positions + embeddings[:, -2], embeddings[:, -1].bool()
        order = is_latent.argsort(stable=True)  # text and ViT tokens first
        back, count = order.argsort(), len(order) - int(is_latent.sum())

        def attend(query: Tensor, key: Tensor, value: Tensor, layer: int) -> Tensor:
            if count < len(order):
                query, key, value = (heads[back] for heads in (query, key, value))
            query, key, value = (heads.transpose(0, 1)[None] for heads in (query, key, value))
            write_keys_values(batch, key, value, layer)
            attended = attend_pages(batch, query, layer, self._scale, 0)[0]
            return attended[order] if count < len(order) else attended

        x = embeddings[order, :width].to(dtype)
        parts = [part for part in x.split([count, len(order) - count]) if len(part)]
        hidden = torch.cat(self._forward(parts, positions[order], attend))[back]
        return self._forward.lm_head(hidden[last]), hidden

    # ---------------------------------------------------------------- flow matching
    @torch.inference_mode()
    def flow(
        self,
        latents: Tensor,
        times: Sequence[float],
        columns: Sequence[int],
        caches: Sequence[PagedKV],
        lengths: Sequence[int],
        markers: Sequence[int],
    ) -> Tensor:
        """Predict the velocity of latents at these times, given the caches, which are not modified."""
        inputs = self.embed_latents(latents, times, columns, lengths)
        image_markers = self._embed(torch.tensor(markers)).repeat(len(caches), 1)
        positions = torch.tensor([cache.table.length + self.position_offset(cache) for cache in caches])
        counts = torch.tensor([_IMAGE_MARKERS] * len(caches) + list(lengths))
        attend = self._attend_cache_and_self(caches, lengths)
        hidden = self._forward([image_markers, inputs], positions.repeat(2).repeat_interleave(counts), attend)[1]
        return self._forward.llm2vae(hidden).float()

    @torch.inference_mode()
    def embed_latents(
        self, latents: Tensor, times: Sequence[float], columns: Sequence[int], lengths: Sequence[int]
    ) -> Tensor:
        """Embed latents with their time and 2D position."""
        network, counts = self._forward, torch.tensor(list(lengths))
        side = int(len(network.places) ** 0.5)
        positions = torch.cat(
            [_latent_positions(length, wide, side) for length, wide in zip(lengths, columns, strict=True)]
        )
        time_embeddings = network.time_embedder(torch.tensor(times)).repeat_interleave(counts, 0)
        return network.vae2llm(latents.to(self._embed.weight.dtype)) + time_embeddings + network.places[positions]

    def _attend_cache_and_self(self, caches: Sequence[PagedKV], lengths: Sequence[int]) -> Attend:
        """Return an attention in which the tokens of a request see its cache and each other.

        Markers of all rows come first.
        """
        store, count = self.store, len(caches)
        cache_slots = [store.places(cache.table.pages, 0, cache.table.length) for cache in caches]
        spans = list(pairwise(accumulate(lengths, initial=_IMAGE_MARKERS * count)))

        def attend(query: Tensor, key: Tensor, value: Tensor, layer: int) -> Tensor:
            results: list[Sequence[Tensor]] = []
            for row, (slots, (first, last)) in enumerate(zip(cache_slots, spans, strict=True)):
                markers = slice(_IMAGE_MARKERS * row, _IMAGE_MARKERS * row + _IMAGE_MARKERS)
                q, k, v = ((heads[markers], heads[first:last]) for heads in (query, key, value))
                keys = torch.cat([store.keys[layer].index_select(0, slots), *k])
                values = torch.cat([store.values[layer].index_select(0, slots), *v])
                q, k, v = (heads.transpose(0, 1)[None] for heads in (torch.cat(q), keys, values))
                attended = scaled_dot_product_attention(q, k, v, scale=self._scale, enable_gqa=True)[0]
                results.append(attended.transpose(0, 1).split([_IMAGE_MARKERS, last - first]))
            return torch.cat([part for parts in zip(*results, strict=True) for part in parts])

        return attend


@functools.lru_cache(64)
def _latent_positions(length: int, columns: int, side: int) -> Tensor:
    """Indices of the latent tokens of an image in a position table of this side."""
    index = torch.arange(length)
    return index // columns * side + index % columns
