"""The mixture over paged memory: texts are read causally, pictures as wholes, and what is drawn is not kept.

Everything a cache reads is a row: an embedding, how far its position is from the number of its place, and whether it is
a latent. So pictures, all of whose tokens stand at one position, are followed by text at the next, and a cache that was
dropped can be read again. Which branches of guidance there are is not known here.
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
"""How much of a row is no embedding."""
_IMAGE_MARKERS = 2
"""A picture stands between two tokens."""


class MixtureDecoder(Decoder):
    """A mixture, and the pages of its requests."""

    _forward: Mixture

    def _captured(self, network: Mixture, *, is_int8: bool) -> tuple[Callable[..., Any], int | None]:  # noqa: ARG002
        """It is run as it is written: its layers call the fused kernels themselves."""
        self._scale = network.layers[0][0].size ** -0.5
        return network, None

    # ---------------------------------------------------------------- what is read
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
        """Read pictures, given as embeddings, between the tokens that say where they begin and end."""
        begin, end = pad(self._embed(torch.tensor(markers)).float(), (0, _EXTRA_COLUMNS)).split(1)
        rows: list[Tensor] = []
        for cache, own in zip(caches, embeddings.float().split(list(lengths)), strict=True):
            row = torch.cat([begin, pad(pad(own, (0, 1)), (0, 1), value=float(is_latent)), end])
            row[:, -2] = self.position_offset(cache) - torch.arange(len(row))
            rows.append(row)
        counts = [len(row) for row in rows]
        joined = torch.cat(rows)
        self._record_inputs(joined, caches, counts)
        self._run(joined, extend_caches(self.store, caches, counts, is_causal=False), torch.tensor([0]))

    def position_offset(self, cache: PagedKV) -> float:
        """How far the position of what a cache reads next is from the number of its place."""
        return float(cache.embeddings[-1][1][-1, -2]) if cache.embeddings else 0.0

    def _embed_inputs(self, given: Tensor, caches: Sequence[PagedKV], counts: Sequence[int]) -> Tensor:
        away = torch.tensor([self.position_offset(cache) for cache in caches])
        return self._embed_at(given, away.repeat_interleave(torch.tensor(counts)))

    def _embed_at(self, tokens: Tensor, position_offsets: Tensor) -> Tensor:
        rows = pad(self._embed(tokens).float(), (0, _EXTRA_COLUMNS))
        rows[:, -2] = position_offsets
        return rows

    def _recompute(self, cache: PagedKV) -> None:
        """Pictures see themselves, so each part is read as it was."""
        parts, away = [part for part in cache.lineage() if len(part)], torch.zeros(1)
        self.store.pool.truncate(cache.table, 0)
        for part in parts:
            is_picture = part.ndim > 1
            rows = part if is_picture else self._embed_at(part, away.expand(len(part)))
            away = rows[-1:, -2]
            self._run(
                rows, extend_caches(self.store, [cache], [len(rows)], is_causal=not is_picture), torch.tensor([0])
            )

    def _run(self, embeddings: Tensor, batch: AttentionBatch, last: Tensor) -> tuple[Tensor, Tensor]:
        width, kind = self._embed.weight.shape[1], self._embed.weight.dtype
        positions, is_latent = batch.positions + embeddings[:, -2], embeddings[:, -1].bool()
        order = is_latent.argsort(stable=True)  # text and sights first
        back, count = order.argsort(), len(order) - int(is_latent.sum())

        def attend(query: Tensor, key: Tensor, value: Tensor, layer: int) -> Tensor:
            if count < len(order):
                query, key, value = (one[back] for one in (query, key, value))
            query, key, value = (one.transpose(0, 1)[None] for one in (query, key, value))
            write_keys_values(batch, key, value, layer)
            attended = attend_pages(batch, query, layer, self._scale, 0)[0]
            return attended[order] if count < len(order) else attended

        x = embeddings[order, :width].to(kind)
        parts = [part for part in x.split([count, len(order) - count]) if len(part)]
        hidden = torch.cat(self._forward(parts, positions[order], attend))[back]
        return self._forward.lm_head(hidden[last]), hidden

    # ---------------------------------------------------------------- what is drawn
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
        """Where latents should go at these moments, given what caches have read. The caches are not touched."""
        drawn = self.embed_latents(latents, times, columns, lengths)
        around = self._embed(torch.tensor(markers)).repeat(len(caches), 1)
        places = torch.tensor([cache.table.length + self.position_offset(cache) for cache in caches])
        counts = torch.tensor([_IMAGE_MARKERS] * len(caches) + list(lengths))
        attend = self._attend_cache_and_self(caches, lengths)
        hidden = self._forward([around, drawn], places.repeat(2).repeat_interleave(counts), attend)[1]
        return self._forward.llm2vae(hidden).float()

    @torch.inference_mode()
    def embed_latents(
        self, latents: Tensor, times: Sequence[float], columns: Sequence[int], lengths: Sequence[int]
    ) -> Tensor:
        """Embeddings of latents: what they are, when, and where."""
        network, counts = self._forward, torch.tensor(list(lengths))
        side = int(len(network.places) ** 0.5)
        where = torch.cat(
            [_latent_positions(length, wide, side) for length, wide in zip(lengths, columns, strict=True)]
        )
        moments = network.time_embedder(torch.tensor(times)).repeat_interleave(counts, 0)
        return network.vae2llm(latents.to(self._embed.weight.dtype)) + moments + network.places[where]

    def _attend_cache_and_self(self, caches: Sequence[PagedKV], lengths: Sequence[int]) -> Attend:
        """Attention in which each request's tokens see its cache and each other. All their ends stand before them."""
        store, count = self.store, len(caches)
        seen = [store.places(cache.table.pages, 0, cache.table.length) for cache in caches]
        spans = list(pairwise(accumulate(lengths, initial=_IMAGE_MARKERS * count)))

        def attend(query: Tensor, key: Tensor, value: Tensor, layer: int) -> Tensor:
            results: list[Sequence[Tensor]] = []
            for row, (places, (first, last)) in enumerate(zip(seen, spans, strict=True)):
                ends = slice(_IMAGE_MARKERS * row, _IMAGE_MARKERS * row + _IMAGE_MARKERS)
                q, k, v = ((one[ends], one[first:last]) for one in (query, key, value))
                keys = torch.cat([store.keys[layer].index_select(0, places), *k])
                values = torch.cat([store.values[layer].index_select(0, places), *v])
                q, k, v = (one.transpose(0, 1)[None] for one in (torch.cat(q), keys, values))
                attended = scaled_dot_product_attention(q, k, v, scale=self._scale, enable_gqa=True)[0]
                results.append(attended.transpose(0, 1).split([_IMAGE_MARKERS, last - first]))
            return torch.cat([part for parts in zip(*results, strict=True) for part in parts])

        return attend


@functools.lru_cache(64)
def _latent_positions(length: int, columns: int, side: int) -> Tensor:
    """The places of a picture's tokens in a table of this side."""
    numbers = torch.arange(length)
    return numbers // columns * side + numbers % columns
