"""An assistant that is spoken to and speaks: Silero, Whisper, SmolLM2 and Hibari as one model.

What is said is cut out of its silence, written down, and answered in speech; the answer ends where its hearer begins to
speak, and the conversation goes on from what was heard. It sees no pictures. Who speaks is not heard here while it
answers: whoever takes the sound tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mstar import walk
from mstar.asks import Chat, Part, Segment, Sound, Speech, Transcript, Transcription, Turn
from mstar.models.voice.smollm2 import SmolLm2
from mstar.models.voice.sounds import pieces, silence
from mstar.models.voice.speaker import Hibari, check_wish
from mstar.models.voice.talker import Talker
from mstar.models.voice.tiny_en import EnglishScribe
from mstar.models.voice.vad import Ear
from mstar.models.voice.whisper import silently, writing
from mstar.models.voice.words import Wish
from mstar.nn.sampling import Sampling

_HEARD = 1500
"""So many positions are read of a piece, however short that is."""


class Assistant(Talker, SmolLm2, Hibari):
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
        _, tokens = silently(writing(self.scribe, self.scribe.spectrum(sound), wish))
        return self.scribe.segments(tokens, sound, start)

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
                check_wish(Speech("", request.voice))
                heard = list[Sound]()

                async def hear(turn: Turn) -> Turn:
                    """A turn with what was said in it written down."""
                    return replace(turn, parts=tuple([await self._read(part, heard) for part in turn.parts]))

                if request.speaks:
                    ending = await self.converse(request, hear)
                else:
                    ending = await self.writing(replace(request, turns=tuple([await hear(t) for t in request.turns])))
                audio = sum(map(positions, heard))
                return replace(ending, read={**ending.read, "audio": audio}) if audio else ending

    async def _read(self, part: Part, heard: list[Sound]) -> Part:
        """A part as text; if it is a sound, what was heard of it is added to `heard`."""
        if not isinstance(part, Sound):
            return part
        heard.append(await self._spoken(part))
        return (await self._written(Transcription(heard[-1]))).text if positions(heard[-1]) else ""

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
