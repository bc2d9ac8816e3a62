"""An assistant that is spoken to and speaks: Silero, Whisper, SmolLM2 and Hibari as one model.

What is said is cut out of its silence, written down, answered, and the answer is said sentence by sentence, each while
the next is being written. It sees no pictures, and does not listen while it speaks.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from mstar import Audio, Stream, Text, choose, loop, walk, windows
from mstar.asks import Chat, Ending, Part, Segment, Sound, Speech, Transcript, Transcription, Turn
from mstar.models.voice.smollm2 import SmolLm2
from mstar.models.voice.sounds import pieces, silence
from mstar.models.voice.speaker import RATE, Hibari, check_wish
from mstar.models.voice.tiny_en import EnglishScribe
from mstar.models.voice.vad import Ear
from mstar.models.voice.whisper import silently, writing
from mstar.models.voice.words import Wish
from mstar.nn.sampling import Sampling

_HEARD = 1500
"""So many positions are read of a piece, however short that is."""


class Assistant(SmolLm2, Hibari):
    """Hears, answers and speaks; each by itself, too."""

    def __init__(self) -> None:
        SmolLm2.__init__(self)
        Hibari.__init__(self)
        self.ear, self.scribe = Ear(), EnglishScribe()

    @walk
    def find(self, sound: Sound) -> Segment:
        """When somebody speaks."""
        return self.ear.speech(sound)

    @walk
    def write(self, sound: Sound, start: float, wish: Wish) -> list[Segment]:
        """Write down a piece, for nobody but itself."""
        _, tokens = silently(writing(self.scribe, sound, wish))
        return self.scribe.segments(tokens, sound, start)

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
                w.stop_when(self.lm.is_over(following, kv, chat.sampling))
                w.stop_when(self.lm.is_pause(w.token, following))
                w.token = following
            sentence, left, is_full = self.lm.sentence(w.tokens, s.left, chat.sampling)
            sentences.put(sentence)
            s.stop_when(is_full)
            s.stop_when(self.lm.is_over(w.token, kv, chat.sampling))
            s.token, s.left = w.token, left
        for window in windows(sentences, size=1):
            yield Audio(self.speaker.say(window[0], manner, 0), rate=RATE)
        return self.lm.ending(prompt, s.token, kv, chat.sampling)

    def warm_ups(self) -> Sequence[Any]:
        """Silence to be written down, and a turn to be answered in speech."""
        turn = Turn("user", (silence(), "Hello."))
        return [Transcription(silence()), Chat((turn,), Sampling(max_tokens=2), speaks=True)]

    async def route(self, request: Chat | Speech | Transcription) -> Any:
        """Answer, speak, or write down."""
        match request:
            case Speech():
                return await Hibari.route(self, request)
            case Transcription():
                return await self._written(request)
            case Chat():
                manner = Speech("", request.voice, seed=request.sampling.seed)
                check_wish(manner)
                heard = list[Sound]()
                chat = replace(request, turns=tuple([await self._read(turn, heard) for turn in request.turns]))
                ending = await (self.talk(chat, manner) if request.speaks else self.writing(chat))
                audio = sum(map(positions, heard))
                return replace(ending, read={**ending.read, "audio": audio}) if audio else ending

    async def _read(self, turn: Turn, heard: list[Sound]) -> Turn:
        """A turn with what was said in it written down; the sounds that were heard for it are added to `heard`."""
        parts = list[Part]()
        for part in turn.parts:
            if isinstance(part, Sound):
                heard.append(await self._spoken(part))
                told = await self._written(Transcription(heard[-1])) if positions(heard[-1]) else None
                parts.append(told.text if told else "")
            else:
                parts.append(part)
        return replace(turn, parts=tuple(parts))

    async def _written(self, request: Transcription) -> Transcript:
        """All that is said in a sound of any length, piece after piece."""
        wish, segments = self.scribe.words.wish(request), list[Segment]()
        for start, piece in pieces(request.sound):
            segments += await self.write(piece, start, wish)
        text = "".join(segment.text for segment in segments).strip()
        return Transcript(text, tuple(segments), "en", len(request.sound.samples) / request.sound.rate)

    async def _spoken(self, sound: Sound) -> Sound:
        """A sound without the silence before and after what is said."""
        found = await self.find(sound)
        start, end = (int(moment * sound.rate) for moment in (found.start, found.end))
        return Sound(sound.samples[start:end], sound.rate)

    def reads(self) -> tuple[type, ...]:
        """What the parts of a conversation may be."""
        return (str, Sound)


def positions(sound: Sound) -> int:
    """How many positions are read of a sound: its tokens, so to speak."""
    return _HEARD * sum(1 for _ in pieces(sound)) if len(sound.samples) else 0
