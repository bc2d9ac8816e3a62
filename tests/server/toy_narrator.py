"""Toy voice chat model with word timestamps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mstar import Audio, Int64, Tensor, Text, WordTimestamps, loop, op, walk
from mstar.requests import WordTimestamp
from tests.server.toy_voice_model import RATE, LetterTones, Talker


class SpokenWords(LetterTones):
    @op
    def letters(self, text: str) -> Int64[Tensor, "N"]:
        return np.array([*map(ord, text)], np.int64)

    @op
    def words(self, text: str, step: int) -> list[WordTimestamp]:
        """The word that ends with this letter, if any."""
        if text[step] == " " or text[step + 1 : step + 2].strip():
            return []
        start = text.rfind(" ", 0, step + 1) + 1
        return [WordTimestamp(text[start : step + 1], start / 50, (step + 1) / 50, start, step + 1)]


class Narrator(Talker):
    """Talker with word timestamps. The text is emitted at once, ahead of the audio."""

    def __init__(self) -> None:
        super().__init__()
        self.tones = SpokenWords()

    @walk
    def say(self, text: str, steps: int) -> Iterator[Text | Audio | WordTimestamps]:
        yield Text(self.tones.letters(text))
        for step in loop(steps=steps):
            letter = self.tones.letter(text, step)
            yield WordTimestamps(self.tones.words(text, step))
            yield Audio(self.tones.voice(letter), rate=RATE)
