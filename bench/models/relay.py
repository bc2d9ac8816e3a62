"""Relay: a value goes back and forth between two components, as often as asked. Nothing is computed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mstar import Int64, Model, Tensor, Text, loop, walk
from mstar.walk.component import Component, op


class Forwarder(Component):
    @op
    def forward(self, value: Int64[Tensor, "N"]) -> Int64[Tensor, "N"]:
        return value

    @op
    def make(self, size: int) -> Int64[Tensor, "N"]:
        import numpy as np

        made: Any = np.zeros(size, np.int64)
        return made

    @op
    def stamp(self, step: int) -> Int64[Tensor, "1"]:  # noqa: ARG002 - it is called for each step
        import numpy as np

        time.sleep(0.002)  # so that one is through before the next is made
        made: Any = np.array([time.perf_counter_ns()])
        return made


class Relay(Model):
    def __init__(self) -> None:
        self.left, self.right = Forwarder(), Forwarder()

    @walk
    def race(self, size: int, rounds: int) -> Int64[Tensor, "N"]:
        s = loop(steps=rounds, baton=self.left.make(size))
        for _ in s:
            s.baton = self.left.forward(self.right.forward(s.baton))
        return s.baton

    @walk
    def show(self, size: int, rounds: int) -> Iterator[Text]:
        s = loop(steps=rounds, baton=self.left.make(size))
        for _ in s:
            s.baton = self.left.forward(s.baton)
            yield Text(s.baton)

    @walk
    def stamp(self, size: int, rounds: int) -> Iterator[Text]:  # noqa: ARG002 - as the others
        for step in loop(steps=rounds):
            yield Text(self.left.stamp(step))

    async def route(self, request: dict[str, Any]) -> None:
        walked = {"race": self.race, "show": self.show, "stamp": self.stamp}[request["walk"]]
        await walked(request["size"], request["rounds"])
