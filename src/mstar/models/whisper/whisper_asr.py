"""Whisper ASR component: log-mel spectrogram, encoder, and decoding with timestamp rules.

It handles one window of 30 s. Longer audio is split and merged in `merge`. It takes no prompt, and produces no speaker
labels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mstar import KV, ONE_ROW, Bool, Float32, Int64, Layout, Tensor, op, ragged, rows, stacked
from mstar.models.whisper.mel_spectrogram import MelSpectrogram
from mstar.models.whisper.tokenizer import WhisperTokenizer
from mstar.models.whisper.word_times import TIMESTAMPS_PER_S, WordTimes
from mstar.nn.audio.resampling import resample
from mstar.nn.weights.progress import Progress
from mstar.nn.weights.sources import Weights
from mstar.requests import AudioInput, Sampling, Segment
from mstar.walk.twin import TWIN_TEXT, OpBody, TwinSizes

if TYPE_CHECKING:
    from mstar.nn.kv.cross_attention import CrossAttentionKV
    from mstar.nn.kv.kv_cache import PagedKV

SAMPLE_RATE_HZ = 16_000
_PADDING_TIMESTAMPS = 2 * TIMESTAMPS_PER_S
"""Timestamps of silence after a short chunk. With less silence the decoder repeats words."""


class WhisperAsr(WordTimes):
    """Encoder-decoder model with its tokenizer and feature extractor.

    `network` loads the transformers model, `spectrogram` the parameters of the mel spectrogram. `window` limits decoder
    self-attention to that many tokens and frees older KV pages. `speech_window` frees the KV pages of encoder positions
    that are more than that number, of 20 ms each, before the last timestamp. `weights_checksum` enables the graph
    cache.
    """

    def __init__(  # noqa: PLR0913 - keyword arguments
        self,
        network: Callable[[], Any],
        tokenizer: WhisperTokenizer,
        spectrogram: Callable[[], MelSpectrogram],
        *,
        pages: int = 1024,
        window: int | None = None,
        speech_window: int | None = None,
        weights_checksum: Callable[[], str] | None = None,
    ) -> None:
        # The tokenizer defines the end token.
        super().__init__(network, eos_token_id=0, pages=pages, window=window, weights_checksum=weights_checksum)
        self.tokenizer = tokenizer
        self._speech_window = speech_window
        self._load_spectrogram = spectrogram

    @functools.cached_property
    def _spectrogram(self) -> MelSpectrogram:
        return self._load_spectrogram()

    def load_network(self) -> Any:
        """Load the network of transformers, neither captured nor on a device."""
        return self._loader.load_uncached().eval().requires_grad_(requires_grad=False)

    def save_compressed(self, sounds: Sequence[AudioInput], energy: float, folder: Path, progress: Progress) -> None:
        """Write a checkpoint whose encoder is compressed, calibrated on these sounds. See `mstar.nn.low_rank`."""
        from transformers.utils import logging

        from mstar.nn.low_rank.compress import compress_encoder

        logging.disable_progress_bar()  # of files: there is one
        network = self.load_network()
        compress_encoder(network, [self.mel_spectrogram(sound)[None] for sound in sounds], energy, progress)
        network.save_pretrained(folder)
        self._spectrogram.save(folder)
        self.tokenizer.save(folder)

    def prepare(self) -> None:
        """Load the network, the parameters of the spectrogram and the tokenizer."""
        super().prepare()
        _ = self._spectrogram, self.tokenizer.detokenize(())

    def prepare_twin(self, sizes: TwinSizes) -> Mapping[str, OpBody]:
        """Transcribe any window as the same words. Encoder states are synthetic, words have no times."""
        bodies = {**super().prepare_twin(sizes), "next_transcript_token": WhisperAsr._next_twin_token}
        for name in ("encode", "write_encoder_states", "token_times"):
            del bodies[name]
        return bodies

    def _next_twin_token(self, tokens: Tensor, kv: KV, sampling: Sampling, layout: Layout) -> Any:
        """`next_transcript_token` without a network: the text of twins between two timestamps."""
        caches, special = list(cast("Sequence[PagedKV]", rows(kv))), self.tokenizer.special_tokens
        chosen, _ = self.decoder.next_token(
            tokens, caches, [Sampling(each.max_tokens) for each in rows(sampling)], layout
        )
        begin = special.timestamp_begin
        transcript = [begin, *self._twin_tokens, begin + TIMESTAMPS_PER_S, special.end]
        for row, cache in enumerate(caches):
            count = cache.sampler.generated_count
            chosen[row] = transcript[min(count, len(transcript) - 1)]
        return chosen

    @functools.cached_property
    def _twin_tokens(self) -> list[int]:
        """Text of a twin, as the longest tokens that it begins with."""
        detokenize, end = self.tokenizer.detokenize, self.tokenizer.special_tokens.end
        tokens = {text: token for token in range(end) if (text := detokenize((token,)))}
        left, chosen = f" {TWIN_TEXT}", list[int]()
        while left:
            longest = next(left[:size] for size in range(len(left), 0, -1) if left[:size] in tokens)
            chosen.append(tokens[longest])
            left = left[len(longest) :]
        return chosen

    @op
    def mel_spectrogram(self, sound: AudioInput) -> Float32[Tensor, "M F"]:
        """Compute the log-mel spectrogram of one window, padded with silence."""
        return self._mel_spectrogram(sound, self._spectrogram.n_samples)

    @op
    def short_mel_spectrogram(self, sound: AudioInput) -> Float32[Tensor, "M F"]:
        """Compute the log-mel spectrogram with only the padding that marks the end, so that encoding is cheaper."""
        timestamps = len(sound.samples) * TIMESTAMPS_PER_S // sound.rate + _PADDING_TIMESTAMPS
        return self._mel_spectrogram(
            sound, min(timestamps * SAMPLE_RATE_HZ // TIMESTAMPS_PER_S, self._spectrogram.n_samples)
        )

    def _mel_spectrogram(self, sound: AudioInput, length: int) -> Tensor:
        return self._spectrogram(resample(sound.samples, sound.rate, SAMPLE_RATE_HZ), length)

    @op(batch=stacked)
    def language_token(self, language: str, kv: KV) -> Int64[Tensor, "1"]:
        """Return the token of this language code, or detect the spoken language if the code is empty.

        An English-only checkpoint has no language tokens: the start token is returned.
        """
        import torch

        special, caches = self.tokenizer.special_tokens, list(cast("Sequence[PagedKV]", rows(kv)))
        start = torch.full((len(caches),), special.start)
        if not special.languages:
            return start[:, None]
        candidates = [
            [special.languages[code]] if code else list(special.languages.values()) for code in rows(language)
        ]
        samplings = [Sampling(1, allowed_ranges=tuple((token, token + 1) for token in tokens)) for tokens in candidates]
        return self.decoder.next_token(start, caches, samplings, Layout(len(caches), (1,) * len(caches)))[0]

    @op
    def task_tokens(self, language: Int64[Tensor, "1"], is_translation: bool) -> Int64[Tensor, "T"]:
        """Build the decoder prompt: the language token and the task token."""
        tasks = self.tokenizer.special_tokens.tasks
        if not self.tokenizer.special_tokens.languages:
            return language
        return language.new_tensor([int(language), tasks["translate" if is_translation else "transcribe"]])

    @op(batch=ragged("T"), chunked=True)
    def next_transcript_token(
        self, tokens: Int64[Tensor, "T"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> Int64[Tensor, "1"]:
        """Read tokens and sample the next one under the timestamp rules."""
        import torch

        from mstar.models.whisper.timestamps import apply_timestamp_rules
        from mstar.nn.lm.sampler import sample_tokens

        caches, special = list(cast("Sequence[PagedKV]", rows(kv))), self.tokenizer.special_tokens
        parts = tokens.split(list(layout.lengths))
        generated = [
            [*cache.sampler.history, *part.tolist()][special.prompt_length :]
            for cache, part in zip(caches, parts, strict=True)
        ]
        ends = [self._timestamp_count(cache) for cache in caches]
        self._forget_transcribed_speech(caches, generated)
        ready = [row for row in range(len(caches)) if row not in layout.unfinished]
        samplings = rows(sampling)
        greedy = [Sampling(sampling.max_tokens) for sampling in samplings]
        with torch.inference_mode():
            chosen, logits = self.decoder.next_token(tokens, caches, greedy, layout)
            if ready:
                open_rows = logits[ready] if layout.unfinished else logits  # indexing would copy all rows
                scores = apply_timestamp_rules(
                    open_rows, [generated[row] for row in ready], [ends[row] for row in ready], special
                )
                row_samplings = [samplings[row] for row in ready]
                chosen[ready] = sample_tokens(scores, row_samplings, [caches[row].sampler for row in ready])
        return chosen

    def _forget_transcribed_speech(self, caches: Sequence[PagedKV], generated: Sequence[Sequence[int]]) -> None:
        """Release the encoder positions that lie more than the speech window before the last timestamp of each row."""
        if self._speech_window is None:
            return
        begin = self.tokenizer.special_tokens.timestamp_begin
        for cache, tokens in zip(caches, generated, strict=True):
            last = next((token - begin for token in reversed(tokens) if token >= begin), 0)
            cast("CrossAttentionKV", cache).forget_encoder_states(last - self._speech_window)

    def _timestamp_count(self, cache: PagedKV) -> int | None:
        """Return the number of timestamps of the encoded audio, or None for a full window."""
        positions = cast("CrossAttentionKV", cache).encoder_positions
        return positions - _PADDING_TIMESTAMPS if positions < self._encoder_decoder.window_positions else None

    @op(batch=stacked)
    def is_over(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this token ends the transcript."""
        return token[:, 0] == self.tokenizer.special_tokens.end

    @op
    def segments(self, tokens: list[Int64[Tensor, "1"]], sound: AudioInput, start: float) -> list[Segment]:
        """Convert tokens with timestamps to text segments. The audio starts at `start` seconds."""
        seconds = len(sound.samples) / sound.rate
        timed = split_by_timestamps(
            tokens, Segment(start, start + seconds, ""), self.tokenizer.special_tokens.timestamp_begin
        )
        return [
            Segment(begin, end, self.tokenizer.detokenize(text_tokens))
            for begin, end, text_tokens in timed
            if self.tokenizer.detokenize(text_tokens)
        ]


def split_by_timestamps(
    tokens: Sequence[Any], span: Segment, timestamp_begin: int
) -> list[tuple[float, float, list[int]]]:
    """Group text tokens by the timestamps around them, clamped to the transcribed span."""
    seconds = span.end - span.start
    groups, begin, words = list[tuple[float, float, list[int]]](), 0.0, list[int]()
    for token in [*map(int, tokens), timestamp_begin + round(seconds * TIMESTAMPS_PER_S)]:
        if token < timestamp_begin:
            words.append(token)
            continue
        moment = min(max((token - timestamp_begin) / TIMESTAMPS_PER_S, begin), seconds)
        if words:
            groups.append((round(span.start + begin, 2), round(span.start + moment, 2), words))
        begin, words = moment, []
    return groups


def load_whisper_asr(
    weights: Weights, pages: int, window: int | None = None, speech_window: int | None = None
) -> WhisperAsr:
    """Load a Whisper checkpoint in the Hugging Face layout."""
    return WhisperAsr(
        weights.network,
        WhisperTokenizer(weights),
        lambda: MelSpectrogram.from_folder(weights.path()),
        pages=pages,
        window=window,
        speech_window=speech_window,
        weights_checksum=weights.checksum,
    )
