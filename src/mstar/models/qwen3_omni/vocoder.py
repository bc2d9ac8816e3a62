"""Vocoder of Qwen3-Omni (Code2Wav): streaming decoder from RVQ frames to audio.

The network is that of transformers. The library decodes 300 frames with 25 frames of context and drops samples at each
boundary, although its layers look back further. Here each layer keeps its own streaming state, so that the audio equals
the decode of all frames at once, and no frame is decoded twice.
"""

from __future__ import annotations

from typing import Any

from mstar import Tensor
from mstar.models.qwen3_omni.checkpoint import Checkpoint
from mstar.nn.audio.codec import Codec


class Vocoder(Codec):
    """Decodes frames with the op `decode`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(lambda: checkpoint.network("vocoder").code2wav, _decode_frames, hop=0)


def _decode_frames(network: Any, codes: Tensor) -> Tensor:
    return network(codes.transpose(1, 2))[:, 0].float()
