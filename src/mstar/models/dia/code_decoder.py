"""Code decoder of Dia: writes a frame of nine codes per step, each codebook after its delay, with guidance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from mstar import KV, Bool, Float, Int64, Tensor, op, rows, stacked
from mstar.models.dia.checkpoint import DELAYS, MAX_DELAY, Checkpoint
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import Sampling

if TYPE_CHECKING:
    from mstar.models.dia.frame_decoder import FrameDecoder
    from mstar.nn.kv.cross_attention import CrossAttentionKV

NOT_ENDED = -1
"""Position of the end of a speech that has none yet."""


class CodeDecoder(CausalLM):
    """Decoder with a KV cache per request for its text, and one for no text."""

    supported_settings = ()
    runs_on_ranks = False

    def __init__(self, checkpoint: Checkpoint, guidance_scale: float | None, pages: int) -> None:
        super().__init__(checkpoint.load_decoder, eos_token_id=0, pages=pages)  # a frame ends the speech, not a code
        self._decoder_options = {}
        self.checkpoint = checkpoint
        self._guidance_scale = guidance_scale

    def _decoder_class(self) -> type[FrameDecoder]:
        from mstar.models.dia.frame_decoder import FrameDecoder

        return FrameDecoder

    @property
    def _frame_decoder(self) -> FrameDecoder:
        return cast("FrameDecoder", self.decoder)

    @property
    def guidance_scale(self) -> float:
        """Scale of the guidance; 1 is none."""
        return self.checkpoint.guidance_scale if self._guidance_scale is None else self._guidance_scale

    @property
    def _special_codes(self) -> tuple[int, int, int]:
        """Start, end and padding code."""
        config: Any = self.checkpoint.config.decoder_config
        return config.bos_token_id, config.eos_token_id, config.pad_token_id

    @op
    def read_text(
        self, text: Float[Tensor, "P D"], no_text: Float[Tensor, "N E"], kv: KV, no_text_kv: KV, sampling: Sampling
    ) -> tuple[Int64[Tensor, "C"], Int64[Tensor, ""], int]:
        """Write the keys and values of the hidden states of a text, and of no text, to the caches.

        Returns the first frame, of start codes, where the speech ends, and the maximum number of frames after it.
        """
        import torch

        steps = sampling.max_tokens + 1 + MAX_DELAY
        self._frame_decoder.require_capacity([len(text), len(no_text)], steps)
        for cache, states in ((kv, text), (no_text_kv, no_text)):
            self._frame_decoder.write_encoder_states(states, [cast("CrossAttentionKV", cache)], [len(states)])
        return torch.full((len(DELAYS),), self._special_codes[0]), torch.tensor(NOT_ENDED), steps

    @op(batch=stacked)
    def next_frame(
        self,
        frame: Int64[Tensor, "C"],
        ended: Int64[Tensor, ""],
        step: int,
        kv: KV,
        no_text_kv: KV,
        sampling: Sampling,
    ) -> tuple[Int64[Tensor, "C"], Int64[Tensor, ""], Bool[Tensor, ""]]:
        """Read a frame and sample the next one. Returns it, the position where the speech ends, and whether it is over.

        A code is delayed: the codebooks of one moment are in different frames.
        """
        import torch

        from mstar.models.dia.frame_rules import apply_delays

        samplings, positions = rows(sampling), [number + 1 for number in rows(step)]
        caches, no_text = (list(cast("Sequence[CrossAttentionKV]", rows(each))) for each in (kv, no_text_kv))
        with torch.inference_mode():
            codes = self._sample(self._scores(frame, caches, no_text, samplings), samplings, caches)
        special, ends = self._special_codes, ended.clone()
        for row, position in enumerate(positions):
            if ends[row] == NOT_ENDED and (codes[row, 0] == special[1] or position > samplings[row].max_tokens):
                ends[row] = position
            apply_delays(codes[row], position, int(ends[row]), special)
        is_over = (ends != NOT_ENDED) & (torch.tensor(positions) == ends + MAX_DELAY)
        return codes, ends, is_over

    def _scores(self, frame: Tensor, caches: list[Any], no_text: list[Any], samplings: Sequence[Sampling]) -> Tensor:
        """Scores of the codes of the next frames, [rows, channels, codes]."""
        import torch

        from mstar.models.dia.frame_rules import guide, restrict_codes

        if (scale := self.guidance_scale) == 1:
            scores = self._frame_decoder.next_scores(frame, caches)
        else:
            scores = self._frame_decoder.next_scores(torch.cat([frame, frame]), [*caches, *no_text])
            guided, unguided = scores.chunk(2)
            scores = guide(guided, unguided, scale, [sampling.top_k for sampling in samplings])
        return restrict_codes(scores, self._special_codes[1])

    def _sample(self, scores: Tensor, samplings: Sequence[Sampling], caches: list[CrossAttentionKV]) -> Tensor:
        """Sample all codes of the frames, [rows, channels] on the host."""
        from mstar.nn.lm.sampler import sample_tokens
        from mstar.walk.batching import failures_of

        channels = scores.shape[1]
        each_code = [row for row in range(len(samplings)) for _ in range(channels)]
        params, samplers = [samplings[row] for row in each_code], [caches[row].sampler for row in each_code]
        with failures_of(each_code):
            return sample_tokens(scores.flatten(0, 1), params, samplers).view(-1, channels)
