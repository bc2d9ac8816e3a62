"""A chat model that says when it spoke: each of its words is the time at which it was made, on a clock that all share.

It computes nothing. Its op waits as one would that runs on an accelerator, and leaves the processor to the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mstar import Component, Model, Text, loop, op, rows, stacked, walk
from mstar.requests import ChatRequest


class TimestampOp(Component):
    @op(batch=stacked)
    def timestamp(self, step: int, wait: float) -> str:
        time.sleep(max(rows(wait)))
        made: Any = [f"{time.perf_counter_ns()} " for _ in rows(step)]
        return made


class TimestampChat(Model):
    """For the prompt "30 0.05" it emits thirty words and takes 0.05 s for each."""

    def __init__(self) -> None:
        self.stamper = TimestampOp()

    @walk
    def speak(self, words: int, wait: float) -> Iterator[Text]:
        for step in loop(steps=words):
            yield Text(self.stamper.timestamp(step, wait))

    async def route(self, request: ChatRequest) -> None:
        words, wait = str(request.messages[-1].parts[0]).split()
        await self.speak(int(words), float(wait))
