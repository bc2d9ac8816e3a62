"""The code predictor of Qwen3-TTS: the codes of a frame that follow its first, one after the other.

It forgets everything after each frame, so a frame is one op, for all requests that have one. Otherwise its loop would
be fifteen steps of the walk, with a cache that lives for a moment. What a frame sounds like it does not know.
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

_SEED_STRIDE = 1_000_003
"""How far the seeds of a request and of the next are apart, in frames."""


class Predictor(Component):
    """The network and the embeddings of all codes."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @functools.cached_property
    def network(self) -> CodePredictor:
        """The network, loaded."""
        from mstar.nn.audio.code_predictor import CodePredictor

        return CodePredictor(self._checkpoint.talker_config["code_predictor_config"], self._checkpoint.talker_tensors)

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @op(batch=stacked)
    def predict_frame(
        self,
        code: Int64[Tensor, "1"],
        hidden_state: Float[Tensor, "D"],
        text: Float[Tensor, "D"],
        sampling: Sampling,
        step: int,
    ) -> tuple[Int64[Tensor, "Q"], Float[Tensor, "1 D"]]:
        """All codes of the frame numbered `step`, and what the talker reads of it, with the text that belongs to it."""
        from mstar.nn.lm.sampler import SamplerState, sample_tokens

        wishes = [
            replace(wish, repetition_penalty=1, seed=(wish.seed * _SEED_STRIDE + number) % 2**63)
            for wish, number in zip(rows(sampling), rows(step), strict=True)
        ]
        choosers = [SamplerState() for _ in wishes]
        codes, heard = self.network.predict_frames(
            code, hidden_state, lambda scores: sample_tokens(scores, wishes, choosers)
        )
        return codes, (heard + text)[:, None]
