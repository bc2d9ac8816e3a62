"""Toy models of the game day: each prompt is a command, and each answer follows from the prompt alone.

They compute next to nothing, so that a client can check every character of an answer. Their weights are a file, so that
a test can damage it or slow it down.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mstar import Component, LoadError, Model, Tensor, Text, UInt8, loop, op, rows, stacked, walk
from mstar.requests import ChatRequest

FACTOR = 48_271
"""The weights."""
WEIGHTS_BYTES = 1 << 18
"""Size of the weights file: larger than the buffer of a pipe."""
MIB = 1 << 20


def weights_text() -> bytes:
    """Content of an intact weights file."""
    return json.dumps({"factor": FACTOR}).encode().ljust(WEIGHTS_BYTES)


def number(key: int, step: int, factor: int = FACTOR) -> str:
    """Output of a step."""
    return f"{(key * factor + step * 7919) % 1_000_003} "


def count_text(key: int, steps: int) -> str:
    """The answer to `count KEY STEPS WAIT`."""
    return "".join(number(key, step) for step in range(steps))


def digest_text(key: int, mib: int) -> str:
    """The answer to `carry KEY MIB`."""
    return str(key % 251 * mib * MIB)


def read_weights(path: str) -> int:
    """Read a weights file. Raises LoadError."""
    try:
        return int(json.loads(Path(path).read_bytes())["factor"])
    except (OSError, ValueError, KeyError) as error:
        raise LoadError(f"{path}: the weights are damaged: {error}\n  fix: restore the file") from error


class Steps(Component):
    """Outputs that depend on a key, on the step and on the weights; and ops that fail."""

    def __init__(self, weights: str) -> None:
        self._path = weights
        self._factor = 0

    def prepare(self) -> None:
        self._factor = read_weights(self._path)

    @op(batch=stacked)
    def count(self, key: int, step: int, wait: float) -> str:
        time.sleep(max(rows(wait)))
        made: Any = [number(one, at, self._factor) for one, at in zip(rows(key), rows(step), strict=True)]
        return made

    @op
    def trap(self, kind: str, step: int) -> str:
        """Fail at the third step."""
        time.sleep(0.01)
        if step == 2 and kind == "kill":
            os.abort()
        if step == 2:
            raise ValueError("the trap of a request")
        return f"{step} "

    @op
    def process(self, step: int, wait: float) -> str:  # noqa: ARG002 - a call for each step
        """The number of this process: a retry in another process computes another value."""
        time.sleep(wait)
        return f"{os.getpid()} "

    @op(idempotent=False)
    def move(self, step: int, wait: float) -> str:
        """Has an effect outside, as the arm of a robot has: must not be repeated."""
        time.sleep(wait)
        return f"{step} "


class Toy(Model):
    """`count KEY STEPS WAIT`, `raise`, `kill`, `process STEPS WAIT`, `move STEPS WAIT`."""

    def __init__(self, weights: str = "") -> None:
        self.steps = Steps(weights)

    @walk
    def count(self, key: int, steps: int, wait: float) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.steps.count(key, step, wait))

    @walk
    def trap(self, kind: str) -> Iterator[Text]:
        for step in loop(steps=4):
            yield Text(self.steps.trap(kind, step))

    @walk
    def process(self, steps: int, wait: float) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.steps.process(step, wait))

    @walk
    def move(self, steps: int, wait: float) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.steps.move(step, wait))

    async def route(self, request: ChatRequest) -> None:
        match str(request.messages[-1].parts[0]).split():
            case ["count", key, steps, wait]:
                await self.count(int(key), int(steps), float(wait))
            case ["process", steps, wait]:
                await self.process(int(steps), float(wait))
            case ["move", steps, wait]:
                await self.move(int(steps), float(wait))
            case [kind]:
                await self.trap(kind)
            case _:
                raise ValueError("not a command")


class Source(Component):
    @op(batch=stacked)
    def count(self, key: int, step: int, wait: float) -> str:
        time.sleep(max(rows(wait)))
        made: Any = [number(one, at) for one, at in zip(rows(key), rows(step), strict=True)]
        return made

    @op
    def array(self, key: int, mib: int) -> UInt8[Tensor, "N"]:
        made: Any = np.full(mib * MIB, key % 251, np.uint8)
        return made


class Sink(Component):
    @op
    def same(self, text: str) -> str:
        return text

    @op
    def digest(self, array: UInt8[Tensor, "N"]) -> str:
        """The sum. It takes a while, so that other arrays wait in shared memory."""
        time.sleep(0.2)
        return str(int(np.asarray(array).sum(dtype=np.int64)))


class Pair(Model):
    """Two components for two workers: `relay KEY STEPS WAIT`, and `carry KEY MIB` for a large value between them."""

    def __init__(self) -> None:
        self.source, self.sink = Source(), Sink()

    @walk
    def relay(self, key: int, steps: int, wait: float) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.sink.same(self.source.count(key, step, wait)))

    @walk
    def carry(self, key: int, mib: int) -> Iterator[Text]:
        yield Text(self.sink.digest(self.source.array(key, mib)))

    async def route(self, request: ChatRequest) -> None:
        match str(request.messages[-1].parts[0]).split():
            case ["relay", key, steps, wait]:
                await self.relay(int(key), int(steps), float(wait))
            case ["carry", key, mib]:
                await self.carry(int(key), int(mib))
            case _:
                raise ValueError("not a command")
