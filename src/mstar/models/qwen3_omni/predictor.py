"""Code predictor of Qwen3-Omni: predicts the remaining RVQ codes of a frame from its first code.

The network is the same as in Qwen3-TTS.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mstar import Float, Int64, Tensor, op, rows, stacked
from mstar.models.qwen3_omni.checkpoint import CODE_PREDICTOR_PREFIX, FIRST_CODE_PREFIX, Checkpoint
from mstar.nn.audio.frame_predictor import FramePredictor
from mstar.requests import Sampling

if TYPE_CHECKING:
    from mstar.nn.audio.code_predictor import CodePredictor

CODE_SAMPLING = Sampling(temperature=1.0, top_k=50, top_p=0.8)
"""Sampling parameters of the published model, used unless decoding is greedy."""


class Predictor(FramePredictor):
    """Code predictor with the embeddings of all codebooks."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def load_network(self) -> CodePredictor:
        """Load the code predictor."""
        from mstar.nn.audio.code_predictor import CodePredictor

        config = self._checkpoint.config.talker_config.code_predictor_config
        tensors = self._checkpoint.tensors(FIRST_CODE_PREFIX, CODE_PREDICTOR_PREFIX)
        named = {name.removeprefix("talker."): self.on_device(tensor) for name, tensor in tensors.items()}
        return CodePredictor({**config.to_dict(), "rope_theta": config.rope_parameters["rope_theta"]}, named)

    @op(batch=stacked)
    def predict_frame(
        self, code: Int64[Tensor, "1"], hidden_state: Float[Tensor, "H"], sampling: Sampling, step: int
    ) -> tuple[Int64[Tensor, "Q"], Float[Tensor, "H"]]:
        """Return all codes of frame `step`, and the sum of their embeddings."""
        samplings = [replace(CODE_SAMPLING if row.temperature else Sampling(), seed=row.seed) for row in rows(sampling)]
        return self.predict_codes(code, hidden_state, samplings, rows(step))
