"""A voice that hums: each tone takes an op 20 ms, by itself, and sounds for a tenth of a second.

It computes next to nothing. Its op waits as one would that runs on an accelerator, and leaves the processor to others.
So one worker keeps up with five streams, and a placement with several shows how many of them are needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from mstar import Audio, Component, Float32, Model, State, Tensor, loop, op, walk

COST_S = 0.02
RATE = 80


@dataclass
class ToneState(State):
    """What was hummed before."""

    last: list[int] = field(default_factory=list[int])

    def fork(self) -> ToneState:
        return ToneState(list(self.last))


class ToneGenerator(Component):
    @op
    def next_tone(self, key: int, step: int, state: ToneState) -> Float32[Tensor, "8"]:
        """The next tone: it depends on all before."""
        time.sleep(COST_S)
        before = state.last[-1] if state.last else key
        state.last.append((before * 48_271 + step + 11) % 2_147_483_647)
        return np.full(8, state.last[-1] % 1000 / 1000, np.float32)


class ToneStream(Model):
    """Two loops of tones that share one state."""

    def __init__(self) -> None:
        self.generator = ToneGenerator()

    @walk
    def tone_loop(self, key: int, tones: int, state: ToneState) -> Iterator[Audio]:
        for step in loop(steps=tones):
            yield Audio(self.generator.next_tone(key, step, state), rate=RATE)

    async def route(self, request: tuple[int, int]) -> int:
        key, tones = request
        breath = self.generator.state(ToneState)
        for _ in range(2):
            await self.tone_loop(key, tones, breath)
        return key
