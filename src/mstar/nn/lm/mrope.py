"""M-RoPE: decoders with three-dimensional rotary positions (time, row, column), as in Qwen-VL and Qwen-Omni.

The inputs are packed into rows of float32, so that requests with images, audio and text share a forward, and so that a
dropped KV cache can be recomputed from its inputs. A row has:

- the embedding,
- the offsets of its three positions from its index in the sequence,
- the DeepStack embeddings: visual features that some models add after their first layers.

`MRopeModel` unpacks rows, `MRopeDecoder` packs tokens. Computing the positions of images is up to the model.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from mstar.nn.kv.kv_cache import PagedKV
from mstar.nn.lm.decoder import Decoder
from mstar.nn.staging import to_device

ROPE_AXES = 3


class PackedEmbedding(nn.Module):
    """Token embedding that returns packed rows, with position offsets 0."""

    def __init__(self, embedding: nn.Embedding, levels: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.extra_width = ROPE_AXES + levels * embedding.embedding_dim
        """Number of values of a row that are not the embedding."""
        self.width, self.dtype = embedding.embedding_dim + self.extra_width, torch.float32

    @property
    def weight(self) -> Tensor:
        """The embedding matrix."""
        return self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """[..., tokens] to [..., tokens, width]."""
        return pad(self.embedding(tokens).float(), (0, self.extra_width))


class MRopeModel(nn.Module):
    """A text model of transformers with its head, for packed rows. It returns the hidden states of one layer."""

    def __init__(self, model: Any, head: nn.Module, *, levels: int = 0, layer: int = -1) -> None:
        super().__init__()
        self.config = model.config
        self.model, self.head = model, head
        self.packing = PackedEmbedding(model.get_input_embeddings(), levels)
        self.levels, self.layer = levels, layer
        self.get_input_embeddings = lambda: self.packing  # the interface of transformers
        if levels:
            model._deepstack_process = lambda hidden, _, visual: hidden + visual  # rows without images have zeros

    def forward(self, inputs_embeds: Tensor, position_ids: Tensor, logits_to_keep: Tensor, **_: Any) -> Any:
        """Logits of the selected positions, and all hidden states. The arguments are those of transformers."""
        size, dtype = self.config.hidden_size, self.packing.weight.dtype
        embeddings, offsets, visual = inputs_embeds.split([size, ROPE_AXES, self.levels * size], -1)
        output = self.model(
            inputs_embeds=embeddings.to(dtype),
            position_ids=position_ids + offsets.movedim(-1, 0),
            deepstack_visual_embeds=[*visual.to(dtype).split(size, -1)] if self.levels else None,
            use_cache=False,
            output_hidden_states=True,
        )
        logits = self.head(output.last_hidden_state[:, logits_to_keep])
        return SimpleNamespace(logits=logits, hidden_states=(output.hidden_states[self.layer],))


class MRopeDecoder(Decoder):
    """Decoder for packed rows. Text after an image or audio has the position offset of the last row before it."""

    captures_steps = False

    def _embed_inputs(self, given: Tensor, caches: Sequence[PagedKV], counts: Sequence[int]) -> Tensor:
        if given.ndim > 1:
            return given
        offsets = self.position_offsets(caches)
        if not any(offsets):
            return self.embed(given)  # its offsets are 0
        return self._pack_with_offset(given, to_device([np.repeat(offsets, counts)], self.device)[0])

    def _lineage_embeddings(self, cache: PagedKV) -> Tensor:
        rows: list[Tensor] = []
        offset = torch.zeros(1, device=self.device)
        for part in cache.lineage():
            if part.ndim > 1:
                rows.append(part.to(self.device))
                offset = rows[-1][-1, self._embedding_size : self._embedding_size + 1]
            else:
                rows.append(self._pack_with_offset(part, offset.expand(len(part))))
        return torch.cat(rows)

    def position_offsets(self, caches: Sequence[PagedKV]) -> list[float]:
        """Offset of the M-RoPE position of the next text token of each cache from its index in the sequence.

        It is read from the last embeddings of the cache, once.
        """
        last = {cache: cache.embeddings[-1][1] for cache in caches if cache.embeddings}
        unread = [cache for cache in last if self._offsets.get(cache, (None,))[0] is not last[cache]]
        if unread:
            values = torch.stack([last[cache][-1, self._embedding_size] for cache in unread]).tolist()
            self._offsets.update({cache: (last[cache], value) for cache, value in zip(unread, values, strict=True)})
        return [self._offsets[cache][1] if cache in last else 0.0 for cache in caches]

    def keep_offsets(self, caches: Sequence[PagedKV], offsets: Sequence[float]) -> None:
        """Note the offsets of caches that have just read embeddings with these, so that nothing has to read them."""
        for cache, offset in zip(caches, offsets, strict=True):
            self._offsets[cache] = cache.embeddings[-1][1], offset

    @functools.cached_property
    def _offsets(self) -> WeakKeyDictionary[PagedKV, tuple[Tensor, float]]:
        """Last embeddings of each cache, and their offset. A read would wait for the device."""
        return WeakKeyDictionary()

    def _pack_with_offset(self, tokens: Tensor, offsets: Tensor) -> Tensor:
        rows = self.embed(tokens)
        rows[:, self._embedding_size : self._embedding_size + ROPE_AXES] = offsets[:, None]
        return rows

    @property
    def _embedding_size(self) -> int:
        return self._embed.weight.shape[1]
