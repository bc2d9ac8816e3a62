"""Times of the words in one window, computed from the cross-attention of the decoder after it was transcribed.

The decoder part of a Whisper component that is used only if words are requested. How tokens are aligned is in
`alignment`, how they become words in `words`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mstar import KV, Int64, Tensor, choose, op, rows, stacked
from mstar.models.whisper.tokenizer import DecodingOptions, WhisperTokenizer
from mstar.models.whisper.words import group_words, place_edges
from mstar.nn.lm.seq2seq import Seq2SeqLM
from mstar.requests import AudioInput, Segment

if TYPE_CHECKING:
    from mstar.nn.kv.cross_attention import CrossAttentionKV

TIMESTAMPS_PER_S = 50
"""Timestamps per second."""


class WordTimes(Seq2SeqLM):
    """Encoder-decoder model that computes the times of tokens and words."""

    tokenizer: WhisperTokenizer

    @op(batch=stacked)
    def token_times(
        self, tokens: list[Int64[Tensor, "1"]], prompt: Int64[Tensor, "T"], sound: AudioInput, kv: KV
    ) -> list[float]:
        """Start of each text token in the window in seconds, and the end of the last one; empty without text.

        The decoder reads the text once more, without timestamps, because attention is sharper without them.
        """
        import torch

        from mstar.models.whisper.alignment import align_tokens

        special = self.tokenizer.special_tokens
        start = [special.start] if special.languages else []
        texts = [[int(token) for token in row if token < special.end] for row in rows(tokens)]
        chosen = [row for row, text in enumerate(texts) if text]
        times: list[list[float]] = [[] for _ in texts]
        if not chosen:
            return cast("list[float]", times)
        caches = [cast("CrossAttentionKV", rows(kv)[row]) for row in chosen]
        sounds = [rows(sound)[row] for row in chosen]
        inputs = [
            torch.tensor([*start, *prompt[row].tolist(), special.timestamp_begin - 1, *texts[row], special.end])
            for row in chosen
        ]
        positions = [
            max(1, min(len(one.samples) * TIMESTAMPS_PER_S // one.rate, cache.encoder_positions))
            for one, cache in zip(sounds, caches, strict=True)
        ]
        with torch.inference_mode():
            scores = self._encoder_decoder.cross_attention_scores(
                torch.cat(inputs), caches, [len(part) for part in inputs], positions, self.tokenizer.alignment_heads
            )
            for row, part in zip(chosen, scores, strict=True):
                firsts = align_tokens(part, len(start) + prompt.shape[1])
                times[row] = [first / TIMESTAMPS_PER_S for first in firsts]
        return cast("list[float]", times)

    @op
    def no_token_times(self) -> list[float]:
        """Result of `token_times` without text."""
        return []

    @op
    def words(
        self, tokens: list[Int64[Tensor, "1"]], times: list[float], sound: AudioInput, language: Int64[Tensor, "1"]
    ) -> list[Segment]:
        """Words of one window with their time ranges; none without token times."""
        texts = [int(token) for token in tokens if token < self.tokenizer.special_tokens.end]
        timed = list(zip(texts, times[:-1], times[1:], strict=True)) if times else []
        words = group_words(timed, self.tokenizer, self.tokenizer.language_code(language))
        return place_edges(words, sound)


def find_token_times(
    asr: Any, tokens: Any, language: Tensor, sound: AudioInput, options: DecodingOptions, kv: KV
) -> Any:
    """Sub-walk: token times of a window if words are requested, else an empty list."""
    return choose(
        options.has_words,
        lambda: asr.token_times(tokens, asr.task_tokens(language, options.is_translation), sound, kv),
        asr.no_token_times,
    )
