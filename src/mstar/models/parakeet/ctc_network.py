"""Parakeet network: Fast Conformer encoder with a CTC head, the unmodified one of transformers.

Requests of similar length share a batch: they are padded and masked as the library does. The logits of a row then have
other last bits than alone, so the result is the likeliest token of each frame only.
"""

from __future__ import annotations

from collections.abc import Sequence

from mstar import ONE_ROW, Float32, Int64, Layout, Tensor, op, ragged
from mstar.nn.audio.ctc import CtcNetwork
from mstar.walk.values import to_device

_MAX_LENGTH_RATIO = 2
"""Maximum ratio of the longest to the shortest request in a batch. More of it would be padding."""
_MAX_SQUARED_FRAMES = 30_000**2
"""Maximum rows of a batch times squared frames of its longest request: attention needs memory for their product."""


class ParakeetNetwork(CtcNetwork):
    """Encoder and CTC head."""

    @op(batch=ragged("F"), rowwise_on_cpu=True)
    def likeliest_tokens(self, features: Float32[Tensor, "F M"], layout: Layout = ONE_ROW) -> Int64[Tensor, "T"]:
        """The likeliest token of each output frame."""
        parts, results = features.split(list(layout.lengths)), dict[int, Tensor]()
        for batch in group_rows(layout.lengths):
            results |= zip(batch, self._run([parts[row] for row in batch]), strict=True)
        return [results[row] for row in range(len(parts))]  # pyright: ignore[reportReturnType] - rows differ in length

    def _run(self, parts: Sequence[Tensor]) -> list[Tensor]:
        import torch
        from torch.nn.utils.rnn import pad_sequence

        network, lengths = self.network, torch.tensor([len(part) for part in parts])
        features = pad_sequence(list(parts), batch_first=True).to(network.dtype)
        mask = to_device(torch.arange(features.shape[1]) < lengths[:, None], features.device)
        tokens = network(input_features=features, attention_mask=mask).logits.argmax(-1).cpu()
        counts = network._get_subsampling_output_length(lengths).tolist()
        return [row[:count].clone() for row, count in zip(tokens, counts, strict=True)]


def group_rows(lengths: Sequence[int]) -> list[list[int]]:
    """Batches of rows of similar length, limited in memory. A row that is alone is never refused."""
    batches = list[list[int]]()
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        is_similar = bool(batches) and lengths[row] <= _MAX_LENGTH_RATIO * lengths[batches[-1][0]]
        if is_similar and (len(batches[-1]) + 1) * lengths[row] ** 2 <= _MAX_SQUARED_FRAMES:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches
