"""The code predictor of Qwen3-Omni: the codes of a frame that follow its first, one after the other.

It forgets everything after each frame, so a frame is one op, for all requests that have one. Its network is the one
that Qwen3-TTS has, with its names and shape. What a frame sounds like it does not know.
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
"""How its authors choose codes, unless all are the likeliest."""
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

        shape = self._checkpoint.config.talker_config.code_predictor_config
        tensors = self._checkpoint.tensors(FIRST_CODE_PREFIX, CODE_PREDICTOR_PREFIX)
        own = {name.removeprefix("talker."): one for name, one in tensors.items()}
        return CodePredictor({**shape.to_dict(), "rope_theta": shape.rope_parameters["rope_theta"]}, own)

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @op(batch=stacked)
    def predict_frame(
        self, code: Int64[Tensor, "1"], hidden_state: Float[Tensor, "H"], sampling: Sampling, step: int
    ) -> tuple[Int64[Tensor, "Q"], Float[Tensor, "H"]]:
        """All codes of the frame numbered `step`, and the sum of their embeddings."""
        from mstar.nn.lm.sampler import SamplerState, sample_tokens

        wishes = [
            replace(CODE_SAMPLING if wish.temperature else Sampling(), seed=(wish.seed * _SEED_STRIDE + number) % 2**63)
            for wish, number in zip(rows(sampling), rows(step), strict=True)
        ]
        choosers = [SamplerState() for _ in wishes]
        return self.network.predict_frames(code, hidden_state, lambda scores: sample_tokens(scores, wishes, choosers))
