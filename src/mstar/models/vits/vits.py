"""VITS: text to speech (TTS) in one pass, in the language of the checkpoint, as Meta's MMS-TTS for 1100 languages.

One component, `synthesizer`: durations, normalizing flow and vocoder are one network, so a text is emitted as a whole.
It runs on the CPU, and does not read phonemes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mstar import Audio, Model, walk
from mstar.errors import Unsupported, format_names
from mstar.models.vits.synthesizer import SAMPLE_RATE_HZ, Synthesizer
from mstar.nn.weights.sources import Weights
from mstar.requests import Finish, SpeechRequest

MAX_CHARACTERS = 2000
"""Maximum length of a text: attention needs memory for its square."""


class Vits(Model):
    """Serves speech requests. `weights` is a folder in the Hugging Face layout, or `hub:NAME`."""

    def __init__(self, weights: str = "hub:facebook/mms-tts-eng") -> None:
        self.synthesizer = Synthesizer(Weights(weights))

    @walk
    def speak(self, text: str, speaker: int | None, speed: float, seed: int) -> Iterator[Audio]:
        """Synthesize a text."""
        tokens = self.synthesizer.tokens(text)
        yield Audio(self.synthesizer.synthesize(tokens, speaker, speed, seed), rate=SAMPLE_RATE_HZ)

    async def route(self, request: SpeechRequest) -> Finish:
        """Speak. Usage counts characters as text tokens."""
        voices = self.voices()
        if request.instructions or request.language or (request.voice and request.voice not in voices):
            known = f"the voices {format_names(voices)}" if voices else "one voice"
            what = f"this VITS speaks its own language in {known}, without instructions"
            raise Unsupported(f"{what}\n  fix: leave out language and instructions, and use one of its voices or none")
        if len(request.text) > MAX_CHARACTERS:
            what = f"the text has {len(request.text)} characters, the limit is {MAX_CHARACTERS}"
            raise Unsupported(f"{what}\n  fix: send its sentences one by one")
        speaker = int(request.voice or 0) if voices else None
        await self.speak(request.text, speaker, request.speed, request.seed)
        return Finish(prompt_tokens={"text": len(request.text)})

    def voices(self) -> tuple[str, ...]:
        """Numbers of the speakers of a checkpoint with several ones."""
        count = self.synthesizer.config.get("num_speakers", 1)
        return tuple(map(str, range(count))) if count > 1 else ()

    def warmup_requests(self) -> Sequence[Any]:
        """One word."""
        return [SpeechRequest("Hello.")]
