"""A model that computes other values in each process: each output has the process id of its worker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mstar import Component, Int64, Model, Tensor, Text, loop, op, walk

STEP_S = 0.01


@dataclass(frozen=True)
class DriftRequest:
    """A number of steps. If it does not drift, every process computes the same."""

    steps: int
    is_drifting: bool


class Counter(Component):
    """Counts, and adds the process id of the worker to each number."""

    @op
    def step(self, step: int, request: DriftRequest) -> Int64[Tensor, "2"]:
        """The process id, or 0, and the number of the step."""
        time.sleep(STEP_S)
        return np.array([os.getpid() if request.is_drifting else 0, step], np.int64)


class Drifting(Model):
    """A loop over the counter."""

    def __init__(self) -> None:
        self.counter = Counter()

    @walk
    def count(self, request: DriftRequest, steps: int) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.counter.step(step, request))

    async def route(self, request: DriftRequest) -> str:
        await self.count(request, request.steps)
        return "counted"
