"""Speech encoder with a CTC head, the unmodified one of transformers.

Requests with equally long audio share a batch. Others do not: several of these networks normalize over the whole length
of their input, so padding would change their results.
"""

from __future__ import annotations

from collections import defaultdict

from mstar import ONE_ROW, Float32, Int64, Layout, Tensor, op, ragged
from mstar.nn.audio.ctc import CtcNetwork


class Wav2Vec2Network(CtcNetwork):
    """Encoder and CTC head."""

    @op(batch=ragged("S"))
    def likeliest_tokens(self, features: Float32[Tensor, "S"], layout: Layout = ONE_ROW) -> Int64[Tensor, "T"]:
        """The likeliest token of each output frame."""
        import torch

        parts, rows_by_length = features.split(list(layout.lengths)), defaultdict[int, list[int]](list)
        for row, length in enumerate(layout.lengths):
            rows_by_length[length].append(row)
        results = dict[int, Tensor]()
        for rows in rows_by_length.values():
            batch = torch.stack([parts[row] for row in rows]).to(self.network.dtype)
            tokens = self.network(input_values=batch).logits.argmax(-1).cpu()
            results |= zip(rows, (row.clone() for row in tokens), strict=True)
        return [results[row] for row in range(len(parts))]  # pyright: ignore[reportReturnType] - rows differ in length
