"""Depth decoder of CSM: predicts the remaining codes of a frame from its first code.

It keeps no state between frames, so a frame is one op, batched across requests. The network is the code predictor of
Qwen3-TTS without norms of queries and keys, and with the rotary frequencies of its config.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mstar import Bool, Component, Float, Int64, Tensor, op, rows, stacked
from mstar.models.csm.checkpoint import Checkpoint
from mstar.requests import Sampling

if TYPE_CHECKING:
    from mstar.nn.audio.code_predictor import CodePredictor

_PREFIX = "depth_decoder."
_EMBEDDINGS = (f"{_PREFIX}model.embed_tokens.weight", "backbone_model.embed_tokens.embed_audio_tokens.weight")
"""Names of the embeddings of all codebooks. They are tied, so a checkpoint can have either."""
_SEED_STRIDE = 1_000_003
"""Distance between the seeds of neighboring requests, in frames."""


class DepthDecoder(Component):
    """Depth decoder with the embeddings of all codebooks. Only codes that the codec can decode are sampled."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @functools.cached_property
    def network(self) -> CodePredictor:
        """The network, loaded on first use."""
        from transformers.models.csm.modeling_csm import CsmRotaryEmbedding

        from mstar.nn.audio.code_predictor import CodePredictor

        shape: Any = self._checkpoint.config.depth_decoder_config
        frequencies = CsmRotaryEmbedding(shape).inv_freq
        tensors = self._checkpoint.tensors(_PREFIX, *_EMBEDDINGS)
        named = _rename_tensors(tensors, shape.vocab_size, self._checkpoint.code_count)
        settings = {**shape.to_dict(), "num_code_groups": shape.num_codebooks}
        moved = {name: self.on_device(named[name]) for name in named}
        return CodePredictor(settings, moved, frequencies, has_head_norms=False)

    def prepare(self) -> None:
        """Load the network. With `memory`, capture its largest graph, which needs memory beside the weights."""
        network = self.network
        if self.memory is not None:
            from mstar.nn.audio.code_sampling import capture_largest

            with self.memory.loading(self.name):
                capture_largest(network, self.memory)

    @op(batch=stacked)
    def predict_frame(
        self, code: Int64[Tensor, "1"], hidden_state: Float[Tensor, "D"], sampling: Sampling, step: int
    ) -> tuple[Int64[Tensor, "Q"], Float[Tensor, "1 D"]]:
        """Return all codes of the frame of this step, and the sum of their embeddings."""
        from mstar.nn.audio.code_sampling import sample_frames

        samplings = [
            replace(row, seed=(row.seed * _SEED_STRIDE + frame) % 2**63)
            for row, frame in zip(rows(sampling), rows(step), strict=True)
        ]
        codes, embedding = sample_frames(self.network, code, hidden_state, samplings)
        return codes, embedding[:, None]

    @op(batch=stacked)
    def is_end(self, frame: Int64[Tensor, "Q"]) -> Bool[Tensor, ""]:
        """Whether this frame ends the speech and has no audio."""
        return frame.eq(self._checkpoint.end_code).all(1)

    @op(batch=stacked)
    def is_over(self, frame: Int64[Tensor, "Q"], following: Int64[Tensor, "P"]) -> Bool[Tensor, ""]:
        """Whether the speech ends after a frame: the following one ends it, or its codes but the last do."""
        end = self._checkpoint.end_code
        return frame[:, :-1].eq(end).all(1) | following.eq(end).all(1)


def _rename_tensors(tensors: dict[str, Tensor], vocab_size: int, code_count: int) -> dict[str, Tensor]:
    """The tensors with the names of Qwen3-TTS, without the codes that the codec cannot decode."""
    embeddings = next(tensors[name] for name in _EMBEDDINGS if name in tensors).split(vocab_size)
    heads = tensors[f"{_PREFIX}codebooks_head.weight"]
    own = "code_predictor."
    named = {name.replace(_PREFIX, own): tensor for name, tensor in tensors.items() if name.startswith(_PREFIX)}
    named[f"{own}small_to_mtp_projection.weight"] = named.pop(f"{own}model.inputs_embeds_projector.weight")
    named["model.codec_embedding.weight"] = embeddings[0][:code_count]
    for number, (embedding, head) in enumerate(zip(embeddings[1:], heads, strict=True)):
        named[f"{own}model.codec_embedding.{number}.weight"] = embedding[:code_count]
        named[f"{own}lm_head.{number}.weight"] = head.T[:code_count].contiguous()
    return named
