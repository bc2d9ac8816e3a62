"""Paged-attention decoder of BAGEL: causal text, bidirectional images, and flow steps that write no KV.

An input row is an embedding, the offset of its position from its index in the cache, and a flag for latents. All tokens
of an image share one position, and the following text continues at the next one; the stored offset makes a preempted
cache recomputable. Guidance is in `guidance`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from mstar.models.bagel.mixture import Attend, Mixture
from mstar.nn import native
from mstar.nn.compile.captured_forward import CapturedForward
from mstar.nn.kv.kv_cache import PagedKV
from mstar.nn.kv.paged_attention import AttentionBatch, attend_pages, extend_caches, write_keys_values
from mstar.nn.lm.decoder import Decoder
from mstar.nn.native.row_linear import RowLinear
from mstar.nn.staging import to_device

_EXTRA_COLUMNS = 2
"""Columns of an input row after the embedding: position offset and latent flag."""
_IMAGE_MARKERS = 2
"""Marker tokens around an image."""


class MixtureDecoder(Decoder):
    """Runs the mixture over the KV pages of all requests."""

    captures_steps = False

    _forward: Mixture

    def _capture(
        self,
        network: Mixture,
        *,
        is_int8: bool,  # noqa: ARG002
    ) -> CapturedForward:
        """Run the network uncaptured: its layers call the fused kernels themselves."""
        self._scale = network.layers[0][0].size ** -0.5
        has_row_products = native.has_row_products(self._embed.weight.dtype, self.device)
        if has_row_products:
            network.set_submodule("lm_head", RowLinear(network.lm_head.weight))
        reason = "" if has_row_products else "torch computes its matrix products"
        return CapturedForward(network, batch_dependence=reason)

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
        counts = [length + _IMAGE_MARKERS for length in lengths]
        columns = zip(caches, counts, strict=True)
        offsets = np.concatenate([self.position_offset(cache) - np.arange(count) for cache, count in columns])
        marker_ids, offset_column = to_device([np.array(markers), offsets], self.device)
        start_marker, end_marker = pad(self._embed(marker_ids).float(), (0, _EXTRA_COLUMNS)).split(1)
        rows: list[Tensor] = []
        for image in embeddings.float().split(list(lengths)):
            rows += [start_marker, pad(pad(image, (0, 1)), (0, 1), value=float(is_latent)), end_marker]
        joined = torch.cat(rows)
        joined[:, -2] = offset_column
        self._record_inputs(joined, caches, counts)
        batch = extend_caches(self.store, caches, counts, is_causal=False)
        (last,) = batch.move(self.device, torch.tensor([0]))
        self._run(joined, batch, last, has_latents=is_latent)

    def position_offset(self, cache: PagedKV) -> float:
        """Return the offset of the next position of a cache from its length: an image has one position."""
        return -float(sum(len(rows) - 1 for _, rows, _ in cache.embeddings))

    def _embed_inputs(self, given: Tensor, caches: Sequence[PagedKV], counts: Sequence[int]) -> Tensor:
        offsets = [self.position_offset(cache) for cache in caches]
        if not any(offsets):
            return self._embed_at(given, 0.0)
        return self._embed_at(given, to_device([np.repeat(offsets, counts)], self.device)[0])

    def _embed_at(self, tokens: Tensor, position_offsets: Tensor | float) -> Tensor:
        rows = pad(self._embed(tokens).float(), (0, _EXTRA_COLUMNS))
        rows[:, -2] = position_offsets
        return rows

    def _recompute(self, cache: PagedKV) -> None:
        """Replay each part as it was read, because image tokens attend to each other in both directions."""
        parts, offset = [part for part in cache.lineage() if len(part)], 0.0
        self.store.pool.truncate(cache.table, 0)
        for part in parts:
            is_image, rows = part.ndim > 1, part.to(self.device)
            if is_image:
                offset -= len(rows) - 1
            else:
                rows = self._embed_at(rows, offset)
            batch = extend_caches(self.store, [cache], [len(rows)], is_causal=not is_image)
            (last,) = batch.move(self.device, torch.tensor([0]))
            self._run(rows, batch, last, has_latents=is_image)

    def _run(
        self, embeddings: Tensor, batch: AttentionBatch, last: Tensor, *, has_latents: bool = False
    ) -> tuple[Tensor, Tensor]:
        width, dtype = self._embed.weight.shape[1], self._embed.weight.dtype
        positions = batch.positions + embeddings[:, -2]

        def attend_in_order(query: Tensor, key: Tensor, value: Tensor, layer: int) -> Tensor:
            query, key, value = (heads.transpose(0, 1)[None] for heads in (query, key, value))
            write_keys_values(batch, key, value, layer)
            return attend_pages(batch, query, layer, self._scale, 0)[0]

        if not has_latents:
            x = embeddings[:, :width].to(dtype).contiguous()
            (hidden,) = self._forward([x], positions, attend_in_order)
            return self._forward.lm_head(hidden[last]), hidden
        is_latent = embeddings[:, -1].bool()
        order = is_latent.argsort(stable=True)  # text and ViT tokens first
        back, count = order.argsort(), len(order) - int(is_latent.sum())

        def attend(query: Tensor, key: Tensor, value: Tensor, layer: int) -> Tensor:
            if count == len(order):
                return attend_in_order(query, key, value, layer)
            return attend_in_order(query[back], key[back], value[back], layer)[order]

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
        positions = [cache.table.length + self.position_offset(cache) for cache in caches]
        token_positions = np.repeat([*positions, *positions], [_IMAGE_MARKERS] * len(caches) + list(lengths))
        slots = [self.store.places(cache.table.pages, 0, cache.table.length) for cache in caches]
        moved = to_device([np.array(markers), token_positions, *slots], self.device)
        image_markers = self._embed(moved[0]).repeat(len(caches), 1)
        attend = self._attend_cache_and_self(moved[2:], lengths)
        hidden = self._forward([image_markers, inputs], moved[1].float(), attend)[1]
        return self._forward.llm2vae(hidden).float()

    @torch.inference_mode()
    def embed_latents(
        self, latents: Tensor, times: Sequence[float], columns: Sequence[int], lengths: Sequence[int]
    ) -> Tensor:
        """Embed latents with their time and 2D position."""
        network = self._forward
        side = int(len(network.places) ** 0.5)
        sizes = zip(lengths, columns, strict=True)
        positions = np.concatenate([_latent_positions(length, wide, side) for length, wide in sizes])
        arrays = [np.array(times, np.float64), np.arange(len(lengths)).repeat(lengths), positions]
        moments, index, places = to_device(arrays, self.device)
        time_embeddings = network.time_embedder(moments.float())[index]
        return network.vae2llm(latents.to(self._embed.weight.dtype)) + time_embeddings + network.places[places]

    def _attend_cache_and_self(self, cache_slots: Sequence[Tensor], lengths: Sequence[int]) -> Attend:
        """Return an attention in which the tokens of a request see the slots of its cache and each other.

        Markers of all rows come first.
        """
        store = self.store
        spans = list(pairwise(accumulate(lengths, initial=_IMAGE_MARKERS * len(cache_slots))))

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
def _latent_positions(length: int, columns: int, side: int) -> np.ndarray:
    """Indices of the latent tokens of an image in a position table of this side."""
    index = np.arange(length)
    return index // columns * side + index % columns
