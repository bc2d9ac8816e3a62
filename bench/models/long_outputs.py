"""A chat model whose outputs have a given length: each begins with the time at which it was made.

For the prompt "30 0.05 4000" it emits thirty outputs, takes 0.05 s for each, and pads them to 4,000 characters. It
computes nothing: its op waits as one would that runs on an accelerator.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mstar import Component, Model, Text, loop, op, rows, stacked, walk
from mstar.requests import ChatRequest


class OutputOp(Component):
    @op(batch=stacked)
    def next_output(self, step: int, wait: float, characters: int) -> str:
        time.sleep(max(rows(wait)))
        lengths = zip(rows(step), rows(characters), strict=True)
        made: Any = [f"{time.perf_counter_ns()} ".ljust(length, "x") for _, length in lengths]
        return made


class LongOutputs(Model):
    """Waits and emits."""

    def __init__(self) -> None:
        self.source = OutputOp()

    @walk
    def speak(self, outputs: int, wait: float, characters: int) -> Iterator[Text]:
        for step in loop(steps=outputs):
            yield Text(self.source.next_output(step, wait, characters))

    async def route(self, request: ChatRequest) -> None:
        outputs, wait, characters = str(request.messages[-1].parts[0]).split()
        await self.speak(int(outputs), float(wait), int(characters))
