"""Forwards of a fixed size, so that no result depends on the rest of the batch (deterministic mode)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mstar.nn.kv.paged_attention import AttentionBatch, running

_TOKENS = 64
"""Number of tokens of every forward."""


def run_fixed(
    forward: Callable[..., Any], embeddings: Tensor, batch: AttentionBatch, last: Tensor
) -> tuple[Tensor, Tensor]:
    """Logits at the indices `last`, and all hidden states, in forwards of a fixed size.

    The rounding of matrix products depends only on their number of rows. Each token attends by itself.
    """
    logits, hidden = list[Tensor](), list[Tensor]()
    for first in range(0, len(embeddings), _TOKENS):
        part = embeddings[first : first + _TOKENS]
        part_last = last[(last >= first) & (last < first + _TOKENS)] - first
        with running(batch.part(first, first + len(part))):
            padded, positions = _pad(part), _pad(batch.positions[first : first + len(part)])
            scores, states = forward(padded[None], positions[None], _pad(part_last))
        logits.append(scores[: len(part_last)])
        hidden.append(states[: len(part)])
    return torch.cat(logits), torch.cat(hidden)


def _pad(x: Tensor) -> Tensor:
    """Pad with zeros to the fixed number of tokens."""
    return torch.cat([x, x.new_zeros((_TOKENS - len(x), *x.shape[1:]))])
