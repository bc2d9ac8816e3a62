"""Speech encoder with a CTC head, the unmodified one of transformers.

Requests with equally long audio share a batch. Others do not: several of these networks normalize over the whole length
of their input, so padding would change their results.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

from mstar import ONE_ROW, Component, Float32, Int64, Layout, Tensor, op, ragged
from mstar.models.wav2vec2.checkpoint import Checkpoint


class CtcNetwork(Component):
    """Encoder and CTC head."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @functools.cached_property
    def network(self) -> Any:
        """The loaded model, on the device of the component."""
        return self.on_device(self._checkpoint.network())

    @op(batch=ragged("S"))
    def likeliest_tokens(self, samples: Float32[Tensor, "S"], layout: Layout = ONE_ROW) -> Int64[Tensor, "T"]:
        """The likeliest token of each output frame."""
        import torch

        parts, rows_by_length = samples.split(list(layout.lengths)), defaultdict[int, list[int]](list)
        for row, length in enumerate(layout.lengths):
            rows_by_length[length].append(row)
        results = dict[int, Tensor]()
        for rows in rows_by_length.values():
            batch = torch.stack([parts[row] for row in rows]).to(self.network.dtype)
            tokens = self.network(input_values=batch).logits.argmax(-1).cpu()
            results |= zip(rows, (row.clone() for row in tokens), strict=True)
        return [results[row] for row in range(len(parts))]  # pyright: ignore[reportReturnType] - rows differ in length
