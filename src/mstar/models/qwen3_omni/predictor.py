"""Code predictor of Qwen3-Omni: predicts the remaining RVQ codes of a frame from its first code.

It keeps no state between frames, so a frame is one op, batched across requests. The network is the same as in
Qwen3-TTS.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from mstar import Component, Float, Int64, Tensor, op, rows, stacked
from mstar.models.qwen3_omni.checkpoint import CODE_PREDICTOR_PREFIX, FIRST_CODE_PREFIX, Checkpoint
from mstar.requests import Sampling

if TYPE_CHECKING:
    from mstar.nn.audio.code_predictor import CodePredictor

CODE_SAMPLING = Sampling(temperature=1.0, top_k=50, top_p=0.8)
"""Sampling parameters of the published model, used unless decoding is greedy."""
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

        config = self._checkpoint.config.talker_config.code_predictor_config
        tensors = self._checkpoint.tensors(FIRST_CODE_PREFIX, CODE_PREDICTOR_PREFIX)
        named = {name.removeprefix("talker."): self.on_device(tensor) for name, tensor in tensors.items()}
        return CodePredictor({**config.to_dict(), "rope_theta": config.rope_parameters["rope_theta"]}, named)

    def prepare(self) -> None:
        """Load the network. With `memory`, capture its largest graph, which needs memory beside the weights."""
        network = self.network
        if self.memory is not None:
            from mstar.nn.audio.code_sampling import capture_largest

            with self.memory.loading(self.name):
                capture_largest(network, self.memory)

    @op(batch=stacked)
    def predict_frame(
        self, code: Int64[Tensor, "1"], hidden_state: Float[Tensor, "H"], sampling: Sampling, step: int
    ) -> tuple[Int64[Tensor, "Q"], Float[Tensor, "H"]]:
        """Return all codes of frame `step`, and the sum of their embeddings."""
        from mstar.nn.audio.code_sampling import sample_frames

        samplings = [
            replace(CODE_SAMPLING if row.temperature else Sampling(), seed=(row.seed * _SEED_STRIDE + frame) % 2**63)
            for row, frame in zip(rows(sampling), rows(step), strict=True)
        ]
        return sample_frames(self.network, code, hidden_state, samplings)
