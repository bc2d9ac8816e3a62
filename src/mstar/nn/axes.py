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

from mstar.nn.decoder import Decoder
from mstar.nn.store import PagedKV

AXES = 3


class Packing(nn.Module):
    """Tokens to rows, for text that stands where its number says."""

    def __init__(self, embedding: nn.Embedding, levels: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.beside = AXES + levels * embedding.embedding_dim
        """How much of a row is no embedding."""
        self.width, self.dtype = embedding.embedding_dim + self.beside, torch.float32

    @property
    def weight(self) -> Tensor:
        """The embeddings of all tokens."""
        return self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """[..., tokens] to [..., tokens, width]."""
        return pad(self.embedding(tokens).float(), (0, self.beside))


class Axes(nn.Module):
    """A library's text model and its head, for rows. Of its hidden states it gives those of one layer."""

    def __init__(self, model: Any, head: nn.Module, *, levels: int = 0, layer: int = -1) -> None:
        super().__init__()
        self.config = model.config
        self.model, self.head = model, head
        self.packing = Packing(model.get_input_embeddings(), levels)
        self.levels, self.layer = levels, layer
        self.get_input_embeddings = lambda: self.packing  # which is how transformers asks for it
        if levels:
            model._deepstack_process = lambda hidden, _, shown: hidden + shown  # rows without pictures have zeros

    def forward(self, inputs_embeds: Tensor, position_ids: Tensor, logits_to_keep: Tensor, **_: Any) -> Any:
        """Logits of some places, and hidden states of all. Arguments are those of transformers."""
        size, kind = self.config.hidden_size, self.packing.weight.dtype
        embeddings, places, shown = inputs_embeds.split([size, AXES, self.levels * size], -1)
        output = self.model(
            inputs_embeds=embeddings.to(kind),
            position_ids=position_ids + places.movedim(-1, 0),
            deepstack_visual_embeds=[*shown.to(kind).split(size, -1)] if self.levels else None,
            use_cache=False,
            output_hidden_states=True,
        )
        logits = self.head(output.last_hidden_state[:, logits_to_keep])
        return SimpleNamespace(logits=logits, hidden_states=(output.hidden_states[self.layer],))


class AxesDecoder(Decoder):
    """A decoder of rows. Text that follows what was read in rows stands as far from its number as the last of them."""

    def _embedded(self, given: Tensor, caches: Sequence[PagedKV], counts: Sequence[int]) -> Tensor:
        if given.ndim > 1:
            return given
        away = torch.tensor([self.distance(cache) for cache in caches])
        return self._placed(given, away.repeat_interleave(torch.tensor(counts)))

    def _relived(self, cache: PagedKV) -> Tensor:
        rows, away = list[Tensor](), torch.zeros(1)
        for part in cache.lineage():
            rows.append(part if part.ndim > 1 else self._placed(part, away.expand(len(part))))
            if part.ndim > 1:
                away = part[-1, self._size : self._size + 1]
        return torch.cat(rows)

    def distance(self, cache: PagedKV) -> float:
        """How far the text that a cache reads next is from the number of its place."""
        return float(cache.embeddings[-1][1][-1, self._size]) if cache.embeddings else 0.0

    def _placed(self, tokens: Tensor, away: Tensor) -> Tensor:
        rows = self.embed(tokens)
        rows[:, self._size : self._size + AXES] = away[:, None]
        return rows

    @property
    def _size(self) -> int:
        return self._embed.weight.shape[1]
