"""Toy voice chat model: describes the audio of the user, or echoes a text, 20 ms of audio per letter."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mstar import Audio, Component, Float32, Int64, Model, Tensor, Text, loop, op, walk
from mstar.requests import (
    AudioInput,
    ChatRequest,
    Finish,
    ToolCall,
    Transcript,
    TranscriptionRequest,
)

RATE = 24_000
LETTER = RATE // 50


class LetterTones(Component):
    @op
    def letter(self, text: str, step: int) -> Int64[Tensor, "1"]:
        if text.startswith("slow"):
            time.sleep(0.01)
        if text[step] == "!":
            raise RuntimeError("an internal secret: /etc/passwd")
        return np.array([ord(text[step])], np.int64)

    @op
    def voice(self, letter: Int64[Tensor, "1"]) -> Float32[Tensor, "S"]:
        time_s = np.arange(LETTER, dtype=np.float32) / RATE
        return (np.sin(time_s * 2 * np.pi * (200 + 4 * int(letter[0]))) / 4).astype(np.float32)


class Talker(Model):
    """Chat and transcription model with text and audio output."""

    def __init__(self) -> None:
        self.tones = LetterTones()
        self.seen: list[Any] = []

    @walk
    def say(self, text: str, steps: int) -> Iterator[Text | Audio]:
        for step in loop(steps=steps):
            letter = self.tones.letter(text, step)
            yield Text(letter)
            yield Audio(self.tones.voice(letter), rate=RATE)

    @walk
    def write(self, text: str, steps: int) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.tones.letter(text, step))

    async def route(self, request: ChatRequest | TranscriptionRequest) -> Finish | Transcript:
        self.seen.append(request)
        if isinstance(request, TranscriptionRequest):
            return Transcript(describe_audio(request.audio), (), "en", 0.0)
        last = request.messages[-1].parts[-1] if request.messages[-1].parts else ""
        text = describe_audio(last) if isinstance(last, AudioInput) else str(last)
        if text == "weather" and request.tools:
            return Finish("tool_calls", {"text": 1}, (ToolCall("", request.tools[0].name, '{"x":1}'),))
        count = min(len(text), request.sampling.max_tokens)
        await (self.say(text, count) if request.audio_output else self.write(text, count))
        return Finish("stop" if count == len(text) else "length", {"text": len(text)})

    def detokenize(self, tokens: Sequence[int], /) -> str:
        return "".join(map(chr, tokens))


def describe_audio(audio: AudioInput) -> str:
    """Duration of the audio and of its loud part, in seconds."""
    loud = int((np.abs(audio.samples) > 0.1).sum()) / audio.rate
    return f"heard {len(audio.samples) / audio.rate:.1f} with {loud:.1f} loud"
