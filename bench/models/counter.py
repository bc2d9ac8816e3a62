"""A model that counts, in its own way, and notes when: who looks at its files sees when each host last did.

It computes next to nothing. Its op waits as one would that runs on an accelerator, and leaves the processor to others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mstar import Component, Int64, Model, Tensor, Text, loop, op, stacked, walk
from mstar.walk.batching import rows


@dataclass(frozen=True)
class CountRequest:
    """Where to begin, how often, and the directory in which each host notes when it computed."""

    key: int
    steps: int
    notes: str = ""


class Counter(Component):
    @op(batch=stacked)
    def step(self, x: Int64[Tensor, "1"], request: CountRequest) -> Int64[Tensor, "1"]:
        """The next number."""
        time.sleep(0.004)
        if notes := rows(request)[0].notes:
            Path(notes, str(os.stat("/proc/self/ns/net").st_ino)).touch()  # by host
        made: Any = (np.asarray(x) * 48_271 + 11) % 2_147_483_647
        return made

    @op
    def start(self, request: CountRequest) -> Int64[Tensor, "1"]:
        """The first number."""
        made: Any = np.array([request.key], np.int64)
        return made


class Count(Model):
    """A loop over an op."""

    def __init__(self) -> None:
        self.part = Counter()

    @walk
    def count(self, request: CountRequest, steps: int) -> Iterator[Text]:
        s = loop(steps=steps, x=self.part.start(request))
        for _ in s:
            s.x = self.part.step(s.x, request)
            yield Text(s.x)

    async def route(self, request: CountRequest) -> str:
        await self.count(request, request.steps)
        return f"counted for {request.key}"
