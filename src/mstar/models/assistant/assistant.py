"""Assistant: a voice assistant built from Silero VAD, Whisper, SmolLM2 and Hibari as one composite model.

A chat turn with audio is trimmed by the VAD (voice activity detection), transcribed by Whisper (ASR), answered by
SmolLM2, and spoken by Hibari (TTS) sentence by sentence. The client can interrupt a spoken answer (barge-in); the
conversation then resumes from the part of the answer that the client played. It reads no images. It does not detect
interruptions: the client or the Realtime endpoint sends them.
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
from mstar.models.whisper.emissions import discard_emissions
from mstar.models.whisper.tiny_en import WhisperTinyEn
from mstar.models.whisper.tokenizer import DecodingOptions
from mstar.models.whisper.whisper import transcribe_window
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
"""Encoder positions per chunk. Whisper pads every chunk to 30 s, so short chunks cost the same."""


class Assistant(SpokenChat, SmolLm2, Hibari):
    """Serves chat, transcription and speech with one set of components."""

    def __init__(self) -> None:
        SmolLm2.__init__(self)
        Hibari.__init__(self)
        self.vad, self.asr = SileroVad(), WhisperTinyEn()

    @walk
    def detect_speech(self, sound: AudioInput) -> Segment:
        """Return the time span that contains speech."""
        return self.vad.detect_speech(sound)

    @walk
    def transcribe(self, sound: AudioInput, start: float, options: DecodingOptions) -> list[Segment]:
        """Transcribe one chunk and return its segments without emitting tokens."""
        _, tokens = discard_emissions(transcribe_window(self.asr, self.asr.mel_spectrogram(sound), options))
        return self.asr.segments(tokens, sound, start)

    def warmup_requests(self) -> Sequence[Any]:
        """One second of silence to transcribe, and one spoken turn."""
        turn = Message("user", (make_silence(), "Hello."))
        return [TranscriptionRequest(make_silence()), ChatRequest((turn,), Sampling(max_tokens=2), audio_output=True)]

    async def route(self, request: ChatRequest | SpeechRequest | TranscriptionRequest) -> Any:
        """Dispatch on the request type: chat, speech or transcription."""
        match request:
            case SpeechRequest():
                return await Hibari.route(self, request)
            case TranscriptionRequest():
                return await self._transcribe(request)
            case ChatRequest():
                check_request(SpeechRequest("", request.voice))
                trimmed = list[AudioInput]()

                async def to_text_message(message: Message) -> Message:
                    """Replace the audio parts of a message by their transcripts."""
                    return replace(message, parts=tuple([await self._to_text(part, trimmed) for part in message.parts]))

                if request.audio_output:
                    finish = await self.converse(request, to_text_message)
                elif request.prompt_tokens is not None:  # text only
                    finish = await self.select_answer(request)
                else:
                    finish = await self.select_answer(
                        replace(request, messages=tuple([await to_text_message(t) for t in request.messages]))
                    )
                audio = sum(map(count_audio_tokens, trimmed))
                return replace(finish, prompt_tokens={**finish.prompt_tokens, "audio": audio}) if audio else finish

    async def _to_text(self, part: ContentPart, trimmed: list[AudioInput]) -> ContentPart:
        """Return a part as text. Audio is transcribed, and its trimmed samples are appended to `trimmed`."""
        if not isinstance(part, AudioInput):
            return part
        trimmed.append(await self._trim_silence(part))
        return (
            (await self._transcribe(TranscriptionRequest(trimmed[-1]))).text if count_audio_tokens(trimmed[-1]) else ""
        )

    async def _transcribe(self, request: TranscriptionRequest) -> Transcript:
        """Transcribe audio of any length, chunk by chunk."""
        options, segments = self.asr.tokenizer.decoding_options(request), list[Segment]()
        for start, piece in split_at_quiet(request.audio):
            segments += await self.transcribe(piece, start, options)
        text = "".join(segment.text for segment in segments).strip()
        return Transcript(text, tuple(segments), "en", len(request.audio.samples) / request.audio.rate)

    async def _trim_silence(self, sound: AudioInput) -> AudioInput:
        """Cut the silence before the first and after the last word."""
        speech = await self.detect_speech(sound)
        start, end = (int(seconds * sound.rate) for seconds in (speech.start, speech.end))
        return AudioInput(sound.samples[start:end], sound.rate)

    def input_types(self) -> tuple[type, ...]:
        """Text and audio."""
        return (str, AudioInput)


def count_audio_tokens(sound: AudioInput) -> int:
    """Count the encoder positions of a recording. They are reported as its audio tokens."""
    return _POSITIONS_PER_CHUNK * sum(1 for _ in split_at_quiet(sound)) if len(sound.samples) else 0
