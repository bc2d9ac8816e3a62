"""Turn detector: tells from the sound of an utterance whether its speaker has finished.

One component with one op, `predict`: the probabilities that the speaker continues after a pause, has finished the turn,
or has only acknowledged what is said (backchannel: "mm-hmm", "yes"). Any model can have it as a component; it is
experimental, so the assistant does not. It recognizes no words, and it does not find speech: a VAD does.
`MODEL_CARD.md` has its data and measured quality; `python -m tools.turn_detector` trains it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mstar import Component, LoadError, Model, op, walk
from mstar.models.turn_detector.features import RATE_HZ, compute_features
from mstar.models.turn_detector.network import classify, shapes
from mstar.nn.audio.resampling import resample
from mstar.requests import AudioInput, TurnDetectionRequest, TurnPrediction

WEIGHTS_FILE = Path(__file__).with_name("turn_detector.safetensors")


class TurnClassifier(Component):
    """Classifies an utterance. `weights` is a safetensors file."""

    def __init__(self, weights: str = str(WEIGHTS_FILE)) -> None:
        self._weights = weights

    @functools.cached_property
    def tensors(self) -> dict[str, Any]:
        """Tensors of the network, as float32. Raises LoadError."""
        import numpy as np
        from safetensors.numpy import load_file

        try:
            tensors = {name: array.astype(np.float32) for name, array in load_file(self._weights).items()}
        except OSError as error:
            raise LoadError(f"{self._weights}: {error}\n  fix: use a file of tools.turn_detector") from error
        if {name: array.shape for name, array in tensors.items()} != shapes():
            what = f"{self._weights} does not have the tensors of a turn detector"
            raise LoadError(f"{what}\n  fix: use a file of tools.turn_detector")
        return tensors

    def prepare(self) -> None:
        """Load the network."""
        _ = self.tensors

    @op
    def predict(self, sound: AudioInput) -> TurnPrediction:
        """Classify speech from its start, or at least its last 3 s, to the present."""
        samples = resample(sound.samples, sound.rate, RATE_HZ)
        return TurnPrediction(*(float(one) for one in classify(self.tensors, compute_features(samples))))


class TurnDetector(Model):
    """Serves turn detection. `weights` is a safetensors file."""

    def __init__(self, weights: str = str(WEIGHTS_FILE)) -> None:
        self.turns = TurnClassifier(weights)

    @walk
    def predict_turn(self, sound: AudioInput) -> TurnPrediction:
        """Classify one utterance."""
        return self.turns.predict(sound)

    def warmup_requests(self) -> Sequence[Any]:
        """One second of silence."""
        import numpy as np

        return [TurnDetectionRequest(AudioInput(np.zeros(RATE_HZ, np.float32), RATE_HZ))]

    async def route(self, request: TurnDetectionRequest) -> TurnPrediction:
        """Classify."""
        return await self.predict_turn(request.audio)
