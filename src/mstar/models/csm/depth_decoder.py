"""Depth decoder of CSM: predicts the remaining codes of a frame from its first code.

The network is the code predictor of Qwen3-TTS without norms of queries and keys, and with the rotary frequencies of its
config.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mstar import Bool, Float, Int64, Tensor, op, rows, stacked
from mstar.models.csm.checkpoint import Checkpoint
from mstar.nn.audio.frame_predictor import FramePredictor
from mstar.requests import Sampling

if TYPE_CHECKING:
    from mstar.nn.audio.code_predictor import CodePredictor

_PREFIX = "depth_decoder."
_EMBEDDINGS = (f"{_PREFIX}model.embed_tokens.weight", "backbone_model.embed_tokens.embed_audio_tokens.weight")
"""Names of the embeddings of all codebooks. They are tied, so a checkpoint can have either."""


class DepthDecoder(FramePredictor):
    """Depth decoder with the embeddings of all codebooks. Only codes that the codec can decode are sampled."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def load_network(self) -> CodePredictor:
        """Load the network."""
        from transformers.models.csm.modeling_csm import CsmRotaryEmbedding

        from mstar.nn.audio.code_predictor import CodePredictor

        shape: Any = self._checkpoint.config.depth_decoder_config
        frequencies = CsmRotaryEmbedding(shape).inv_freq
        tensors = self._checkpoint.tensors(_PREFIX, *_EMBEDDINGS)
        named = _rename_tensors(tensors, shape.vocab_size, self._checkpoint.code_count)
        settings = {**shape.to_dict(), "num_code_groups": shape.num_codebooks}
        moved = {name: self.on_device(named[name]) for name in named}
        return CodePredictor(settings, moved, frequencies, has_head_norms=False)

    @op(batch=stacked)
    def predict_frame(
        self, code: Int64[Tensor, "1"], hidden_state: Float[Tensor, "D"], sampling: Sampling, step: int
    ) -> tuple[Int64[Tensor, "Q"], Float[Tensor, "1 D"]]:
        """Return all codes of the frame of this step, and the sum of their embeddings."""
        codes, embedding = self.predict_codes(code, hidden_state, rows(sampling), rows(step))
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
