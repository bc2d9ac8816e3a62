"""Silero: where in a recording somebody speaks. What is said, and by whom, it does not know.

pip install onnxruntime && pip install --no-deps silero-vad==6.2.3   # only the network of the package is used
"""

from __future__ import annotations

import functools
from typing import Any

from mstar import Component, op
from mstar.asks import Segment, Sound
from mstar.errors import LoadError
from mstar.models.voice.sounds import resampled
from mstar.nn.weights import PackageFile

SILERO = PackageFile(
    "silero-vad",
    "6.2.3",
    "silero_vad/data/silero_vad.onnx",
    "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    "MIT",
)
RATE = 16_000
_FRAME, _PAST = 512, 64
"""The samples that it hears at a time, and those before them that it hears again."""
_LIKELY = 0.5
_AROUND_S = 0.25
"""So much is left before and after what was found: words begin and end softly."""


class Ear(Component):
    """Silero VAD 6."""

    weights = (SILERO,)

    @functools.cached_property
    def _session(self) -> Any:
        path = SILERO.path()
        try:
            import onnxruntime
        except ImportError as error:
            raise LoadError(
                f"hearing when somebody speaks needs a library: {error}\n  fix: pip install onnxruntime"
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def prepare(self) -> None:
        """Load the network."""
        _ = self._session

    @op
    def speech(self, sound: Sound) -> Segment:
        """From the first word to the last, without the words. Where nobody speaks it lasts no time."""
        import numpy as np

        samples = resampled(sound, RATE)
        padded = np.pad(samples, (_PAST, -len(samples) % _FRAME)).astype(np.float32)
        state, found = np.zeros((2, 1, 128), np.float32), list[int]()
        for at in range(0, len(padded) - _PAST, _FRAME):
            given = {"input": padded[None, at : at + _PAST + _FRAME], "state": state, "sr": np.array(RATE)}
            likely, state = self._session.run(None, given)
            if likely.item() > _LIKELY:
                found.append(at)
        if not found:
            return Segment(0.0, 0.0, "")
        start, end = found[0] / RATE - _AROUND_S, (found[-1] + _FRAME) / RATE + _AROUND_S
        return Segment(max(start, 0.0), min(end, len(samples) / RATE), "")
