"""Automatic speech recognition (ASR) with CTC on raw audio: wav2vec 2.0, HuBERT, WavLM and their variants.

See `nn/audio/ctc.py` for the model.
"""

from __future__ import annotations

from mstar.models.wav2vec2.checkpoint import Checkpoint
from mstar.models.wav2vec2.ctc_network import Wav2Vec2Network
from mstar.models.wav2vec2.processor import Processor
from mstar.nn.audio.ctc import CtcTranscription
from mstar.nn.weights.sources import Weights


class Wav2Vec2(CtcTranscription):
    """`weights` is a folder in the Hugging Face layout, or `hub:NAME`."""

    def __init__(self, weights: str = "hub:facebook/wav2vec2-base-960h", *, language: str = "en") -> None:
        checkpoint = Checkpoint(Weights(weights))
        super().__init__(checkpoint, language)
        self.processor = Processor(checkpoint, language)
        self.ctc = Wav2Vec2Network(checkpoint)
