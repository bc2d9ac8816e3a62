"""SmolLM2-135M-Instruct in bfloat16, as vLLM serves it: `mstar serve bench/peers/text_model.py`."""

from __future__ import annotations

from mstar.models.smollm2.smollm2 import LanguageModel, SmolLm2
from mstar.nn.weights.sources import SMOLLM2_135M, Weights


class Bf16LanguageModel(LanguageModel):
    def __init__(self) -> None:
        super().__init__()
        self._load = lambda: Weights(str(SMOLLM2_135M.path())).network("bfloat16")


class Bf16SmolLm2(SmolLm2):
    def __init__(self) -> None:
        self.lm = Bf16LanguageModel()
