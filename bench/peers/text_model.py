"""SmolLM2-135M-Instruct in bfloat16, as vLLM serves it: `mstar serve bench/peers/text_model.py`."""

from __future__ import annotations

from mstar.models.voice.smollm2 import SmolLm2, Writer
from mstar.nn.weights import SMOLLM2_135M, Weights


class HalfWriter(Writer):
    def __init__(self) -> None:
        super().__init__()
        self._load = lambda: Weights(str(SMOLLM2_135M.path())).network("bfloat16")


class Half(SmolLm2):
    def __init__(self) -> None:
        self.lm = HalfWriter()
