"""An assistant that is spoken to and speaks: Silero, Whisper, SmolLM2 and Hibari as one model.

What is said is cut out of its silence, written down, answered, and the answer is said sentence by sentence, each while
the next is being written. It sees no pictures, and does not listen while it speaks.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from mstar import Audio, Stream, Text, choose, loop, walk, windows
from mstar.asks import Chat, Ending, Part, Segment, Sound, Speech, Transcription, Turn
from mstar.models.voice.smollm2 import SmolLm2
from mstar.models.voice.speaker import RATE, Hibari, check_wish
from mstar.models.voice.vad import Ear
from mstar.models.voice.whisper import Scribe, written
from mstar.nn.sampling import Sampling


class Assistant(SmolLm2, Hibari):
    """Hears, answers and speaks; each by itself, too."""

    def __init__(self) -> None:
        SmolLm2.__init__(self)
        Hibari.__init__(self)
        self.ear, self.scribe = Ear(), Scribe()

    @walk
    def find(self, sound: Sound) -> Segment:
        """When somebody speaks."""
        return self.ear.speech(sound)

    @walk
    def write(self, sound: Sound, start: float, sampling: Sampling) -> list[Segment]:
        """Write down a piece, for nobody but itself."""
        kv = self.scribe.kv()
        self.scribe.hear(self.scribe.encode(self.scribe.spectrum(sound)), kv)
        first = self.scribe.next(self.scribe.start(), kv, sampling)
        s = loop(steps=choose(self.scribe.is_end(first), 0, sampling.max_tokens), token=first)
        for _ in s:
            s.collect(tokens=s.token)
            s.token = self.scribe.next(s.token, kv, sampling)
            s.stop_when(self.scribe.is_end(s.token))
        return self.scribe.segments(s.tokens, sound, start)

    @walk
    def talk(self, chat: Chat, manner: Speech) -> Generator[Text | Audio, None, Ending]:
        """Answer, and say each sentence while the next is being written."""
        prompt, most = self.lm.prompt(chat)
        kv, sentences = self.lm.kv(), Stream("sentences")
        first = self.lm.next(prompt, kv, chat.sampling)
        s = loop(steps=choose(self.lm.is_end(first, chat.sampling), 0, most), token=first, left=most)
        for _ in s:
            w = loop(steps=s.left, token=s.token)
            for _ in w:
                yield Text(w.token)
                w.collect(tokens=w.token)
                following = self.lm.next(w.token, kv, chat.sampling)
                w.stop_when(self.lm.is_end(following, chat.sampling))
                w.stop_when(self.lm.is_pause(w.token, following))
                w.token = following
            sentence, left, is_full = self.lm.sentence(w.tokens, s.left)
            sentences.put(sentence)
            s.stop_when(is_full)
            s.stop_when(self.lm.is_end(w.token, chat.sampling))
            s.token, s.left = w.token, left
        for window in windows(sentences, size=1):
            yield Audio(self.speaker.say(window[0], manner, 0), rate=RATE)
        return self.lm.ending(prompt, s.token, chat.sampling)

    async def route(self, request: Chat | Speech | Transcription) -> Any:
        """Answer, speak, or write down."""
        match request:
            case Speech():
                return await Hibari.route(self, request)
            case Transcription():
                return await written(request, self.write)
            case Chat():
                manner = Speech("", request.voice, seed=request.sampling.seed)
                check_wish(manner)
                chat = replace(request, turns=tuple([await self._read(turn) for turn in request.turns]))
                return await (self.talk(chat, manner) if request.speaks else self.answer(chat))

    async def _read(self, turn: Turn) -> Turn:
        """A turn with what was said in it written down."""
        parts: list[Part] = [await self._heard(part) if isinstance(part, Sound) else part for part in turn.parts]
        return replace(turn, parts=tuple(parts))

    async def _heard(self, sound: Sound) -> str:
        found = await self.find(sound)
        start, end = (int(moment * sound.rate) for moment in (found.start, found.end))
        spoken = Transcription(Sound(sound.samples[start:end], sound.rate))
        return (await written(spoken, self.write)).text if start < end else ""
