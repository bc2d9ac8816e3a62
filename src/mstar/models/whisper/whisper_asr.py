"""Scribe: Whisper as a component, the network, the spectra that it hears and the rules by which it writes.

It hears as much at once as its network does, thirty seconds. What is longer is cut and joined by `stitcher`.
It takes no prompt, and knows neither who speaks nor when each single word is said.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from mstar import KV, ONE_ROW, Bool, Float32, Int64, Layout, Tensor, op, ragged, rows, stacked
from mstar.models.whisper.tokenizer import WhisperTokenizer
from mstar.nn.audio.resampling import resample
from mstar.nn.kv.cross_attention import CrossAttentionKV
from mstar.nn.lm.seq2seq import Seq2SeqLM
from mstar.nn.weights.sources import Weights
from mstar.requests import AudioInput, Sampling, Segment

if TYPE_CHECKING:
    from mstar.nn.kv.kv_cache import PagedKV

SAMPLE_RATE_HZ = 16_000
TIMESTAMPS_PER_S = 50
"""So many moments a second has."""
_PADDING_TIMESTAMPS = 2 * TIMESTAMPS_PER_S
"""So many follow a sound that is heard without the rest of the window. With fewer, words are written again."""


class WhisperAsr(Seq2SeqLM):
    """A network that `network` loads, with its words.

    `extractor` makes spectra, as transformers does. With `window` a token sees so many before it, and what is older is
    forgotten.
    """

    def __init__(
        self,
        network: Callable[[], Any],
        tokenizer: WhisperTokenizer,
        extractor: Callable[[], Any],
        *,
        pages: int = 1024,
        window: int | None = None,
    ) -> None:
        super().__init__(network, eos_token_id=0, pages=pages, window=window)  # which token ends a text, the words say
        self.tokenizer = tokenizer
        self._load_extractor = extractor

    @functools.cached_property
    def _feature_extractor(self) -> Any:
        return self._load_extractor()

    def prepare(self) -> None:
        """Load the network, and what it hears and writes with."""
        super().prepare()
        _ = self._feature_extractor, self.tokenizer.detokenize(())

    @op
    def mel_spectrogram(self, sound: AudioInput) -> Float32[Tensor, "M F"]:
        """The spectrum of as much as is heard at once; silence follows what is shorter."""
        return self._mel_spectrogram(sound, self._feature_extractor.n_samples)

    @op
    def short_mel_spectrogram(self, sound: AudioInput) -> Float32[Tensor, "M F"]:
        """The same with no more silence than tells that the sound is over, so that there is less to hear."""
        moments = len(sound.samples) * TIMESTAMPS_PER_S // sound.rate + _PADDING_TIMESTAMPS
        return self._mel_spectrogram(
            sound, min(moments * SAMPLE_RATE_HZ // TIMESTAMPS_PER_S, self._feature_extractor.n_samples)
        )

    def _mel_spectrogram(self, sound: AudioInput, length: int) -> Tensor:
        how = {"sampling_rate": SAMPLE_RATE_HZ, "max_length": length, "return_tensors": "pt"}
        return self._feature_extractor(resample(sound.samples, sound.rate, SAMPLE_RATE_HZ), **how).input_features[0]

    @op(batch=stacked)
    def language_token(self, language: str, kv: KV) -> Int64[Tensor, "1"]:
        """The token of the language that is spoken, or of the one with this code. Without languages, where to begin."""
        import torch

        marks, caches = self.tokenizer.special_tokens, list(cast("Sequence[PagedKV]", rows(kv)))
        begin = torch.full((len(caches),), marks.start)
        if not marks.languages:
            return begin[:, None]
        known = [[marks.languages[one]] if one else list(marks.languages.values()) for one in rows(language)]
        wishes = [Sampling(1, allowed_ranges=tuple((token, token + 1) for token in tokens)) for tokens in known]
        return self.decoder.next_token(begin, caches, wishes, Layout(len(caches), (1,) * len(caches)))[0]

    @op
    def task_tokens(self, language: Int64[Tensor, "1"], is_translation: bool) -> Int64[Tensor, "T"]:
        """What is read before the first word: the language, and what to do with it."""
        tasks = self.tokenizer.special_tokens.tasks
        if not self.tokenizer.special_tokens.languages:
            return language
        return language.new_tensor([int(language), tasks["translate" if is_translation else "transcribe"]])

    @op(batch=ragged("T"), chunked=True)
    def next_transcript_token(
        self, tokens: Int64[Tensor, "T"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> Int64[Tensor, "1"]:
        """Read tokens; the token that follows, of those that may."""
        import torch

        from mstar.models.whisper.timestamps import apply_timestamp_rules
        from mstar.nn.lm.sampler import sample_tokens

        caches, marks = list(cast("Sequence[PagedKV]", rows(kv))), self.tokenizer.special_tokens
        parts = tokens.split(list(layout.lengths))
        said = [
            [*one.sampler.history, *part.tolist()][marks.prompt_length :]
            for one, part in zip(caches, parts, strict=True)
        ]
        ends = [self._timestamp_count(one) for one in caches]
        ready = [row for row in range(len(caches)) if row not in layout.unfinished]
        wishes = rows(sampling)
        plain = [Sampling(wish.max_tokens) for wish in wishes]
        with torch.inference_mode():
            chosen, logits = self.decoder.next_token(tokens, caches, plain, layout)
            if ready:
                open_rows = logits[ready] if layout.unfinished else logits  # choosing them would copy all
                scores = apply_timestamp_rules(
                    open_rows, [said[row] for row in ready], [ends[row] for row in ready], marks
                )
                own, choosers = [wishes[row] for row in ready], [caches[row].sampler for row in ready]
                chosen[ready] = sample_tokens(scores, own, choosers)
        return chosen

    def _timestamp_count(self, cache: PagedKV) -> int | None:
        """How many moments the sound has that it heard, if not a whole window."""
        heard = cast("CrossAttentionKV", cache).cross_attention_cache.table.length
        return heard - _PADDING_TIMESTAMPS if heard < self._encoder_decoder.window_positions else None

    @op(batch=stacked)
    def is_over(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this token ends the text."""
        return token[:, 0] == self.tokenizer.special_tokens.end

    @op
    def segments(self, tokens: list[Int64[Tensor, "1"]], sound: AudioInput, start: float) -> list[Segment]:
        """What was said between the moments that were written down, of a sound that begins at `start`."""
        seconds = len(sound.samples) / sound.rate
        found = split_by_timestamps(
            tokens, Segment(start, start + seconds, ""), self.tokenizer.special_tokens.timestamp_begin
        )
        return [
            Segment(begin, end, self.tokenizer.detokenize(said))
            for begin, end, said in found
            if self.tokenizer.detokenize(said)
        ]


def split_by_timestamps(
    tokens: Sequence[Any], span: Segment, timestamp_begin: int
) -> list[tuple[float, float, list[int]]]:
    """Tokens between the moments among them, and when these are: inside of the span that was heard."""
    seconds = span.end - span.start
    found, begin, words = list[tuple[float, float, list[int]]](), 0.0, list[int]()
    for token in [*map(int, tokens), timestamp_begin + round(seconds * TIMESTAMPS_PER_S)]:
        if token < timestamp_begin:
            words.append(token)
            continue
        moment = min(max((token - timestamp_begin) / TIMESTAMPS_PER_S, begin), seconds)
        if words:
            found.append((round(span.start + begin, 2), round(span.start + moment, 2), words))
        begin, words = moment, []
    return found


def load_whisper_asr(weights: Weights, pages: int, window: int | None) -> WhisperAsr:
    """The Whisper of a folder in the layout of its hub."""

    def extractor() -> Any:
        from transformers import WhisperFeatureExtractor

        return WhisperFeatureExtractor.from_pretrained(weights.path())

    return WhisperAsr(weights.network, WhisperTokenizer(weights), extractor, pages=pages, window=window)
