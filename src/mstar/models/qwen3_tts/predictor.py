"""Code predictor of Qwen3-TTS: predicts the remaining RVQ codes of a frame from its first code."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mstar import Float, Int64, Tensor, op, rows, stacked
from mstar.models.qwen3_tts.checkpoint import Checkpoint
from mstar.nn.audio.frame_predictor import FramePredictor
from mstar.requests import Sampling

if TYPE_CHECKING:
    from mstar.nn.audio.code_predictor import CodePredictor

_TENSOR_PREFIXES = ("code_predictor.", "model.codec_embedding.")


class Predictor(FramePredictor):
    """Code predictor with the embeddings of all codebooks."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def load_network(self) -> CodePredictor:
        """Load the code predictor."""
        from mstar.nn.audio.code_predictor import CodePredictor

        tensors = self._checkpoint.talker_tensors.items()
        own = {name: self.on_device(tensor) for name, tensor in tensors if name.startswith(_TENSOR_PREFIXES)}
        return CodePredictor(self._checkpoint.talker_config["code_predictor_config"], own)

    @op(batch=stacked)
    def predict_frame(
        self,
        code: Int64[Tensor, "1"],
        hidden_state: Float[Tensor, "D"],
        text: Float[Tensor, "D"],
        sampling: Sampling,
        step: int,
    ) -> tuple[Int64[Tensor, "Q"], Float[Tensor, "1 D"]]:
        """Return all codes of frame `step`, and the talker input for it: code embeddings plus text embedding."""
        samplings = [replace(row, repetition_penalty=1) for row in rows(sampling)]
        codes, embedding = self.predict_codes(code, hidden_state, samplings, rows(step))
        return codes, (embedding + text)[:, None]
