"""Parakeet CTC: automatic speech recognition (ASR) in one pass of a Fast Conformer, with the times of words.

One output per 80 ms. Audio can be as long as the positions of the checkpoint: 400 s for the published ones. See
`nn/audio/ctc.py` for the model.
"""

from __future__ import annotations

from mstar.models.parakeet.checkpoint import Checkpoint
from mstar.models.parakeet.ctc_network import ParakeetNetwork
from mstar.models.parakeet.processor import Processor
from mstar.nn.audio.ctc import CtcTranscription
from mstar.nn.weights.sources import Weights


class Parakeet(CtcTranscription):
    """`weights` is a folder in the Hugging Face layout, or `hub:NAME`."""

    def __init__(self, weights: str = "hub:nvidia/parakeet-ctc-1.1b", *, language: str = "en") -> None:
        checkpoint = Checkpoint(Weights(weights))
        super().__init__(checkpoint, language)
        self.processor = Processor(checkpoint, language)
        self.ctc = ParakeetNetwork(checkpoint)
