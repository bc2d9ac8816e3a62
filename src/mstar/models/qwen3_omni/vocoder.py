"""The vocoder of Qwen3-Omni: frames of codes become sound that goes on where it stopped.

The network is transformers' own. The library decodes 300 frames at once behind the 25 before them, and loses the last
samples of each such piece; others take 25 behind 25. Its layers look back further than that. Here they remember what
they looked at: the sound is that of all frames at once, however they come, and nothing is computed twice.
"""

from __future__ import annotations

from typing import Any

from mstar import Tensor
from mstar.models.qwen3_omni.checkpoint import Checkpoint
from mstar.nn.audio.codec import Codec


class Vocoder(Codec):
    """Speaks frames, by its op `decode`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(lambda: checkpoint.network("vocoder").code2wav, _decode_frames, hop=0)


def _decode_frames(network: Any, codes: Tensor) -> Tensor:
    return network(codes.transpose(1, 2))[:, 0].float()
