"""Decoders whose positions have three axes: a moment, a row and a column, as those of Qwen's models that see.

What such a network reads is packed in rows of float32, so that requests with pictures, sound and text share a forward,
and so that a cache which was dropped can be read again: an embedding, how far each of its three positions is from the
number of its place, and what is added behind the first layers (what pictures show on several levels, which some models
are told there). `Axes` unpacks rows, `AxesDecoder` packs tokens. Which places pictures have is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from mstar.nn.kv.kv_cache import PagedKV
from mstar.nn.lm.decoder import Decoder

ROPE_AXES = 3


class PackedEmbedding(nn.Module):
    """Tokens to rows, for text that stands where its number says."""

    def __init__(self, embedding: nn.Embedding, levels: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.extra_width = ROPE_AXES + levels * embedding.embedding_dim
        """How much of a row is no embedding."""
        self.width, self.dtype = embedding.embedding_dim + self.extra_width, torch.float32

    @property
    def weight(self) -> Tensor:
        """The embeddings of all tokens."""
        return self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """[..., tokens] to [..., tokens, width]."""
        return pad(self.embedding(tokens).float(), (0, self.extra_width))


class MRopeModel(nn.Module):
    """A library's text model and its head, for rows. Of its hidden states it gives those of one layer."""

    def __init__(self, model: Any, head: nn.Module, *, levels: int = 0, layer: int = -1) -> None:
        super().__init__()
        self.config = model.config
        self.model, self.head = model, head
        self.packing = PackedEmbedding(model.get_input_embeddings(), levels)
        self.levels, self.layer = levels, layer
        self.get_input_embeddings = lambda: self.packing  # which is how transformers asks for it
        if levels:
            model._deepstack_process = lambda hidden, _, shown: hidden + shown  # rows without pictures have zeros

    def forward(self, inputs_embeds: Tensor, position_ids: Tensor, logits_to_keep: Tensor, **_: Any) -> Any:
        """Logits of some places, and hidden states of all. Arguments are those of transformers."""
        size, kind = self.config.hidden_size, self.packing.weight.dtype
        embeddings, places, shown = inputs_embeds.split([size, ROPE_AXES, self.levels * size], -1)
        output = self.model(
            inputs_embeds=embeddings.to(kind),
            position_ids=position_ids + places.movedim(-1, 0),
            deepstack_visual_embeds=[*shown.to(kind).split(size, -1)] if self.levels else None,
            use_cache=False,
            output_hidden_states=True,
        )
        logits = self.head(output.last_hidden_state[:, logits_to_keep])
        return SimpleNamespace(logits=logits, hidden_states=(output.hidden_states[self.layer],))


class MRopeDecoder(Decoder):
    """A decoder of rows. Text that follows what was read in rows stands as far from its number as the last of them."""

    def _embed_inputs(self, given: Tensor, caches: Sequence[PagedKV], counts: Sequence[int]) -> Tensor:
        if given.ndim > 1:
            return given
        away = torch.tensor([self.position_offset(cache) for cache in caches])
        return self._pack_with_offset(given, away.repeat_interleave(torch.tensor(counts)))

    def _lineage_embeddings(self, cache: PagedKV) -> Tensor:
        rows, away = list[Tensor](), torch.zeros(1)
        for part in cache.lineage():
            rows.append(part if part.ndim > 1 else self._pack_with_offset(part, away.expand(len(part))))
            if part.ndim > 1:
                away = part[-1, self._embedding_size : self._embedding_size + 1]
        return torch.cat(rows)

    def position_offset(self, cache: PagedKV) -> float:
        """How far the text that a cache reads next is from the number of its place."""
        return float(cache.embeddings[-1][1][-1, self._embedding_size]) if cache.embeddings else 0.0

    def _pack_with_offset(self, tokens: Tensor, away: Tensor) -> Tensor:
        rows = self.embed(tokens)
        rows[:, self._embedding_size : self._embedding_size + ROPE_AXES] = away[:, None]
        return rows

    @property
    def _embedding_size(self) -> int:
        return self._embed.weight.shape[1]
