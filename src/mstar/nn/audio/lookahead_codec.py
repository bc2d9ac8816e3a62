"""LookaheadCodec: streams of codes whose decoder looks ahead, such as SNAC and DAC, as chunks that come at any time.

The network must have been made streaming by `mstar.nn.audio.lookahead`. Each frame is decoded once, and the chunks of a
stream add up to the audio of all its codes at once. A subclass declares the op, because codecs differ in their codes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from mstar.nn.audio.codec import Codec, CodecStreamState, LayerMemory
from mstar.walk.types import Tensor

DecodeRows = Callable[[list[int], Tensor], Tensor]
"""Maps some rows of a batch and their codes, stacked, to audio [rows, samples]."""


class LookaheadCodec(Codec):
    """Codec with chunks of codes, the last of which is marked."""

    def decode_chunks(
        self, chunks: Sequence[Tensor], ends: Sequence[bool], past: Sequence[CodecStreamState], decode: DecodeRows
    ) -> list[Tensor]:
        """Audio that the next codes of each stream complete. `ends` marks the last chunk of a stream.

        The first chunk must be longer than the lookahead of the network, unless it is the last one; a stream without
        codes has no audio. Streams with equal numbers of codes are decoded together.
        """
        groups = defaultdict[Any, list[int]](list)
        for row, (codes, is_last, state) in enumerate(zip(chunks, ends, past, strict=True)):
            groups[len(codes), is_last, bool(state.memory)].append(row)
        done: dict[int, tuple[Tensor, LayerMemory]] = {}
        for (count, is_last, has_begun), group in groups.items():
            if count or has_begun:
                done |= zip(group, self._decode_group(chunks, group, past, decode, is_last=is_last), strict=True)
            else:
                nothing = self.on_device(chunks[group[0]].new_zeros(0).float())
                done |= {row: (nothing, LayerMemory()) for row in group}
        for row, state in enumerate(past):  # after all groups, so that a failed batch changes no state
            state.memory = done[row][1]
        return [done[row][0] for row in range(len(chunks))]

    def _decode_group(
        self,
        chunks: Sequence[Tensor],
        group: list[int],
        past: Sequence[CodecStreamState],
        decode: DecodeRows,
        *,
        is_last: bool,
    ) -> list[tuple[Tensor, LayerMemory]]:
        """Samples and layer memory of streams that all start, or all continue."""
        import torch

        from mstar.nn.audio.streaming import StreamingState, streaming

        state = StreamingState([past[row].memory for row in group], is_last=is_last)
        with torch.inference_mode(), streaming(state):
            waveforms = decode(group, torch.stack([chunks[row] for row in group]))
        return [(samples, LayerMemory(state.memory(row))) for row, samples in enumerate(waveforms)]
