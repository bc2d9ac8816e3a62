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
from mstar.models.assistant.spoken_chat import SpokenChat
from mstar.models.hibari.tts import Hibari, check_request
from mstar.models.silero.vad import SileroVad
from mstar.models.smollm2.smollm2 import SmolLm2
from mstar.models.whisper.audio import make_silence, split_at_quiet
from mstar.models.whisper.tiny_en import WhisperTinyEn
from mstar.models.whisper.tokenizer import DecodingOptions
from mstar.models.whisper.whisper import discard_emissions, transcribe_window
from mstar.requests import (
    AudioInput,
    ChatRequest,
    ContentPart,
    Message,
    Sampling,
    Segment,
    SpeechRequest,
    Transcript,
    TranscriptionRequest,
)

_POSITIONS_PER_CHUNK = 1500
"""So many positions are read of a piece, however short that is."""


class Assistant(SpokenChat, SmolLm2, Hibari):
    """Hears, answers and speaks; each by itself, too."""

    def __init__(self) -> None:
        SmolLm2.__init__(self)
        Hibari.__init__(self)
        self.vad, self.asr = SileroVad(), WhisperTinyEn()

    @walk
    def detect_speech(self, sound: AudioInput) -> Segment:
        """When somebody speaks."""
        return self.vad.detect_speech(sound)

    @walk
    def transcribe(self, sound: AudioInput, start: float, options: DecodingOptions) -> list[Segment]:
        """Write down a piece, for nobody but itself."""
        _, tokens = discard_emissions(transcribe_window(self.asr, self.asr.mel_spectrogram(sound), options))
        return self.asr.segments(tokens, sound, start)

    def warmup_requests(self) -> Sequence[Any]:
        """Silence to be written down, and a turn to be answered in speech."""
        turn = Message("user", (make_silence(), "Hello."))
        return [TranscriptionRequest(make_silence()), ChatRequest((turn,), Sampling(max_tokens=2), audio_output=True)]

    async def route(self, request: ChatRequest | SpeechRequest | TranscriptionRequest) -> Any:
        """Answer, speak, or write down."""
        match request:
            case SpeechRequest():
                return await Hibari.route(self, request)
            case TranscriptionRequest():
                return await self._transcribe(request)
            case ChatRequest():
                check_request(SpeechRequest("", request.voice))
                heard = list[AudioInput]()

                async def hear(turn: Message) -> Message:
                    """A turn with what was said in it written down."""
                    return replace(turn, parts=tuple([await self._to_text(part, heard) for part in turn.parts]))

                if request.audio_output:
                    ending = await self.converse(request, hear)
                else:
                    ending = await self.select_answer(
                        replace(request, messages=tuple([await hear(t) for t in request.messages]))
                    )
                audio = sum(map(count_audio_tokens, heard))
                return replace(ending, prompt_tokens={**ending.prompt_tokens, "audio": audio}) if audio else ending

    async def _to_text(self, part: ContentPart, trimmed: list[AudioInput]) -> ContentPart:
        """A part as text; if it is a sound, what was heard of it is added to `heard`."""
        if not isinstance(part, AudioInput):
            return part
        trimmed.append(await self._trim_silence(part))
        return (
            (await self._transcribe(TranscriptionRequest(trimmed[-1]))).text if count_audio_tokens(trimmed[-1]) else ""
        )

    async def _transcribe(self, request: TranscriptionRequest) -> Transcript:
        """All that is said in a sound of any length, piece after piece."""
        wish, segments = self.asr.tokenizer.decoding_options(request), list[Segment]()
        for start, piece in split_at_quiet(request.audio):
            segments += await self.transcribe(piece, start, wish)
        text = "".join(segment.text for segment in segments).strip()
        return Transcript(text, tuple(segments), "en", len(request.audio.samples) / request.audio.rate)

    async def _trim_silence(self, sound: AudioInput) -> AudioInput:
        """A sound without the silence before and after what is said."""
        found = await self.detect_speech(sound)
        start, end = (int(moment * sound.rate) for moment in (found.start, found.end))
        return AudioInput(sound.samples[start:end], sound.rate)

    def input_types(self) -> tuple[type, ...]:
        """What the parts of a conversation may be."""
        return (str, AudioInput)


def count_audio_tokens(sound: AudioInput) -> int:
    """How many positions are read of a sound: its tokens, so to speak."""
    return _POSITIONS_PER_CHUNK * sum(1 for _ in split_at_quiet(sound)) if len(sound.samples) else 0
