"""A toy model that hears and speaks: it says how long it heard somebody, or repeats a text, 20 ms of sound a letter."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mstar import Audio, Component, Float32, Int64, Model, Tensor, Text, loop, op, walk
from mstar.asks import Chat, Ending, Sound, ToolCall, Transcript, Transcription

RATE = 24_000
LETTER = RATE // 50


class Mouth(Component):
    @op
    def letter(self, text: str, step: int) -> Int64[Tensor, "1"]:
        if text.startswith("slow"):
            time.sleep(0.01)
        if text[step] == "!":
            raise RuntimeError("a secret of the house: /etc/passwd")
        return np.array([ord(text[step])], np.int64)

    @op
    def voice(self, letter: Int64[Tensor, "1"]) -> Float32[Tensor, "S"]:
        at = np.arange(LETTER, dtype=np.float32) / RATE
        return (np.sin(at * 2 * np.pi * (200 + 4 * int(letter[0]))) / 4).astype(np.float32)


class Talker(Model):
    """Repeats, in letters and in tones."""

    def __init__(self) -> None:
        self.mouth = Mouth()
        self.seen: list[Any] = []

    @walk
    def say(self, text: str, steps: int) -> Iterator[Text | Audio]:
        for step in loop(steps=steps):
            letter = self.mouth.letter(text, step)
            yield Text(letter)
            yield Audio(self.mouth.voice(letter), rate=RATE)

    @walk
    def write(self, text: str, steps: int) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.mouth.letter(text, step))

    async def route(self, request: Chat | Transcription) -> Ending | Transcript:
        self.seen.append(request)
        if isinstance(request, Transcription):
            return Transcript(told(request.sound), (), "en", 0.0)
        last = request.turns[-1].parts[-1] if request.turns[-1].parts else ""
        text = told(last) if isinstance(last, Sound) else str(last)
        if text == "weather" and request.tools:
            return Ending("tool_calls", {"text": 1}, (ToolCall("call_1", request.tools[0].name, '{"x":1}'),))
        count = min(len(text), request.sampling.max_tokens)
        await (self.say(text, count) if request.speaks else self.write(text, count))
        return Ending("stop" if count == len(text) else "length", {"text": len(text)})

    def spell(self, tokens: Sequence[int], /) -> str:
        return "".join(map(chr, tokens))


def told(sound: Sound) -> str:
    """What is said of a sound: how long its loud part is, in tenths of a second."""
    loud = int((np.abs(sound.samples) > 0.1).sum()) / sound.rate
    return f"heard {len(sound.samples) / sound.rate:.1f} with {loud:.1f} loud"
