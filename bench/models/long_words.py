"""A chat model like `timestamps` whose words can be long: after the time come as many letters as the prompt says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mstar import Component, Model, Text, loop, op, rows, stacked, walk
from mstar.requests import ChatRequest


class LongWordOp(Component):
    @op(batch=stacked)
    def speak(self, step: int, wait: float, letters: int) -> str:
        time.sleep(max(rows(wait)))
        made: Any = [
            f"{time.perf_counter_ns()} {'x' * count}" for _, count in zip(rows(step), rows(letters), strict=True)
        ]
        return made


class LongWordChat(Model):
    """For the prompt "30 0.05 4000" it emits thirty words of 4,000 letters and takes 0.05 s for each."""

    def __init__(self) -> None:
        self.speaker = LongWordOp()

    @walk
    def speak(self, words: int, wait: float, letters: int) -> Iterator[Text]:
        for step in loop(steps=words):
            yield Text(self.speaker.speak(step, wait, letters))

    async def route(self, request: ChatRequest) -> None:
        words, wait, letters = str(request.messages[-1].parts[0]).split()
        await self.speak(int(words), float(wait), int(letters))
