"""Code predictor of Qwen3-TTS: predicts the remaining RVQ codes of a frame from its first code.

It keeps no state between frames, so a frame is one op, batched across requests, instead of fifteen steps of the walk
with a short-lived KV cache.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from mstar import Component, Float, Int64, Tensor, op, rows, stacked
from mstar.models.qwen3_tts.checkpoint import Checkpoint
from mstar.requests import Sampling

if TYPE_CHECKING:
    from mstar.nn.audio.code_predictor import CodePredictor

_TENSOR_PREFIXES = ("code_predictor.", "model.codec_embedding.")
_SEED_STRIDE = 1_000_003
"""Distance between the seeds of neighboring requests, in frames."""


class Predictor(Component):
    """Code predictor with the embeddings of all codebooks."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @functools.cached_property
    def network(self) -> CodePredictor:
        """The code predictor, loaded on first use."""
        from mstar.nn.audio.code_predictor import CodePredictor

        tensors = self._checkpoint.talker_tensors.items()
        own = {name: self.on_device(tensor) for name, tensor in tensors if name.startswith(_TENSOR_PREFIXES)}
        return CodePredictor(self._checkpoint.talker_config["code_predictor_config"], own)

    def prepare(self) -> None:
        """Load the network. With `memory`, capture its largest graph, which needs memory beside the weights."""
        network = self.network
        if self.memory is not None:
            from mstar.nn.audio.code_sampling import capture_largest

            with self.memory.loading(self.name):
                capture_largest(network, self.memory)

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
        from mstar.nn.audio.code_sampling import sample_frames

        samplings = [
            replace(row, repetition_penalty=1, seed=(row.seed * _SEED_STRIDE + frame) % 2**63)
            for row, frame in zip(rows(sampling), rows(step), strict=True)
        ]
        codes, embedding = sample_frames(self.network, code, hidden_state, samplings)
        return codes, (embedding + text)[:, None]
