"""Models with injected faults: one raises, hangs or kills its worker at a step, one has side effects."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mstar import Action, Component, Int64, Model, Tensor, Text, loop, op, stacked, walk
from mstar.sim.models import Chat
from mstar.walk.batching import rows


@dataclass(frozen=True)
class TrapRequest:
    """A number of steps; at step `at` the fault `trap` triggers: raise, abort, exit, device, memory, mark or hold.

    Robot moves and marks go to `file`; for `memory` it is the cgroup that has too little. If `device` has a file, the
    device fails only until that file exists.
    """

    key: int
    steps: int = 40
    trap: str = ""
    at: int = -1
    file: str = ""


class Fragile(Component):
    """A counter with injected faults."""

    @op(batch=stacked)
    def step(self, x: Int64[Tensor, "1"], step: int, request: TrapRequest) -> Int64[Tensor, "1"]:
        """The next number."""
        time.sleep(0.002)  # long enough for requests to batch
        for number, each in zip(rows(step), rows(request), strict=True):
            if number == each.at:
                trigger_trap(each)
        return (np.asarray(x) * 48_271 + 11) % 2_147_483_647

    @op
    def start(self, request: TrapRequest) -> Int64[Tensor, "1"]:
        """The first number."""
        return np.array([request.key], np.int64)


def trigger_trap(request: TrapRequest) -> None:
    """Trigger the fault of a request."""
    if request.trap == "raise":
        raise ValueError(f"the trap of {request.key}")
    if request.trap == "abort":
        os.abort()
    if request.trap == "exit":
        os._exit(3)
    if request.trap == "device" and not (request.file and Path(request.file).exists()):
        if request.file:
            Path(request.file).touch()
        import torch  # other workers start faster without it

        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    if request.trap == "memory":
        Path(request.file, "cgroup.procs").write_text(str(os.getpid()))
        np.ones(1 << 27)  # 1 GiB
    if request.trap == "mark":
        with Path(request.file).open("a") as file:
            file.write(".")
        time.sleep(0.5)
    if request.trap == "hold":
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            sum(range(60_000_000))  # holds the GIL for about a second


class Traps(Model):
    """A loop over a fragile op."""

    def __init__(self) -> None:
        self.part = Fragile()

    @walk
    def count(self, request: TrapRequest, steps: int) -> Iterator[Text]:
        s = loop(steps=steps, x=self.part.start(request))
        for step in s:
            s.x = self.part.step(s.x, step, request)
            yield Text(s.x)

    async def route(self, request: TrapRequest) -> str:
        await self.count(request, request.steps)
        if request.trap == "route":
            raise KeyError(f"the route of {request.key}")
        return f"counted for {request.key}"


class TwoTraps(Traps):
    """The same walk twice."""

    async def route(self, request: TrapRequest) -> str:
        await self.count(request, request.steps)
        return await super().route(request)


class Arm(Component):
    """Logs each move to a file."""

    @op(idempotent=False)
    def move(self, step: int, request: TrapRequest) -> int:
        """One move."""
        time.sleep(0.01)
        with Path(request.file).open("a") as file:
            file.write(f"{step}\n")
        return step


class Robot(Model):
    """A model with a non-idempotent op."""

    def __init__(self) -> None:
        self.arm = Arm()

    @walk
    def act(self, request: TrapRequest, steps: int) -> Iterator[Action]:
        for step in loop(steps=steps):
            yield Action(self.arm.move(step, request), rate=100)

    async def route(self, request: TrapRequest) -> None:
        await self.act(request, request.steps)


class Dialogue(Chat):
    """A multi-turn route."""
