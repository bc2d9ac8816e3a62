"""A model that fails in the way that the text of a request names. The line that is to blame is marked with the name."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from mstar import (
    Component,
    Float32,
    Int64,
    Model,
    RowsFailed,
    State,
    Tensor,
    Text,
    Unsupported,
    loop,
    op,
    stacked,
    walk,
)
from mstar.requests import ChatRequest

RAISING_TOKEN, WRONG_TOKEN = 1, 2
"""Tokens at which `detokenize` fails."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even this fails")


class Locked:
    def __deepcopy__(self, memo: object) -> None:
        raise TypeError("this cannot be copied")  # state_copy # state_fork


class Memory(State):
    def __init__(self, content: Any = None) -> None:
        self.content = content


class BrokenMemory(State):
    def __init__(self) -> None:
        raise OSError("no room for a state")  # state_create


def fail(case: str) -> None:  # noqa: C901 - one branch each
    """Failures of plain Python code."""
    match case:
        case "op_raises":
            raise ValueError("bad luck")  # op_raises
        case "op_library":
            np.linalg.inv(np.zeros((2, 2)))  # op_library
        case "op_assert":
            assert case == "other"  # op_assert
        case "op_lookup":
            {"a": 1}[case]  # op_lookup
        case "op_chained":
            try:
                int(case)
            except ValueError as error:
                raise LookupError("no such voice") from error  # op_chained
        case "op_unreadable":
            raise Mute  # op_unreadable
        case "op_recursion":
            fail_deeply()
        case "op_memory":
            np.empty(1 << 60, np.uint8)  # op_memory
        case "op_timeout":
            raise TimeoutError("the robot does not answer")  # op_timeout
        case "op_exit":
            os._exit(3)
        case "op_slow":
            time.sleep(4)


def fail_deeply() -> None:
    fail_deeply()  # op_recursion


def fail_in_torch(case: str) -> None:
    """Failures of a torch module."""
    match case:
        case "torch_dtype":
            torch.nn.Linear(2, 2)(torch.zeros(1, 2, dtype=torch.float64))  # torch_dtype
        case "torch_shape":
            torch.nn.Linear(2, 2)(torch.zeros(1, 3))  # torch_shape
        case "torch_device":
            torch.zeros(1, device="meta") + torch.zeros(1)  # torch_device
            torch.zeros(1, device="meta").item()  # torch_device
        case "torch_memory":
            torch.empty(1 << 60)  # torch_memory
        case "torch_backward":
            torch.nn.Linear(2, 1)(torch.zeros(2)).backward()  # torch_backward


class Worker(Component):
    def make_state(self, kind: type) -> Any:
        return kind()

    @op
    def run(self, case: str) -> Int64[Tensor, "1"]:
        fail(case)
        fail_in_torch(case)
        token = {"detokenize_raises": RAISING_TOKEN, "detokenize_type": WRONG_TOKEN}.get(case, ord("x"))
        return np.array([token], np.int64)

    @op  # result_shape
    def shape(self) -> Float32[Tensor, "2"]:
        return np.zeros((1, 2), np.float32)

    @op  # result_dtype
    def dtype(self) -> Float32[Tensor, "2"]:
        return np.zeros(2)

    @op  # result_none
    def nothing(self) -> Float32[Tensor, "2"]:
        np.zeros(2, np.float32)

    @op
    def infinite(self, case: str) -> Float32[Tensor, "2"]:
        return np.full(2, np.nan, np.float32) if case == "result_nan" else torch.full((2,), math.inf)

    @op  # result_count
    def pair(self) -> tuple[Int64[Tensor, "1"], str]:
        return (np.zeros(1, np.int64),)

    @op(batch=stacked)
    def batched(self, x: Float32[Tensor, "2"], case: str) -> Int64[Tensor, "1"]:
        if case[0] == "batch_raises":
            raise ArithmeticError("an unlucky batch")  # batch_raises
        raise RowsFailed({0: OverflowError("row 0 is too large")})

    @op
    def remember(self, memory: Memory, case: str) -> Int64[Tensor, "1"]:
        memory.content = Locked() if case == "state_copy" else memory.content
        return np.zeros(1, np.int64)

    @op
    def forget(self, memory: BrokenMemory) -> Int64[Tensor, "1"]:
        return np.zeros(1, np.int64)

    @op
    def words(self) -> list[str]:
        return ["one"]

    @op
    def settings(self) -> object:
        return {"a": 1}


class Failing(Model):
    def __init__(self) -> None:
        self.worker = Worker()

    @walk
    def run_op(self, case: str) -> Iterator[Text]:
        yield Text(self.worker.run(case))

    @walk
    def run_shape(self) -> Iterator[Text]:
        yield Text(self.worker.shape())

    @walk
    def run_dtype(self) -> Iterator[Text]:
        yield Text(self.worker.dtype())

    @walk
    def run_nothing(self) -> Iterator[Text]:
        yield Text(self.worker.nothing())

    @walk
    def run_infinite(self, case: str) -> Iterator[Text]:
        yield Text(self.worker.infinite(case))

    @walk
    def run_pair(self) -> Iterator[Text]:
        number, text = self.worker.pair()
        yield Text(number)
        yield Text(text)

    @walk
    def run_batch(self, x: Float32[Tensor, "2"], case: str) -> Iterator[Text]:
        yield Text(self.worker.batched(x, case))

    @walk
    def run_state(self, case: str) -> Iterator[Text]:
        memory = self.worker.state(Memory)
        yield Text(self.worker.remember(memory, case))
        yield Text(self.worker.remember(memory, case))

    @walk
    def keep_state(self, memory: Memory, case: str) -> Iterator[Text]:
        yield Text(self.worker.remember(memory, case))

    @walk
    def make_state(self) -> Iterator[Text]:
        yield Text(self.worker.forget(self.worker.state(BrokenMemory)))

    @walk
    def take_word(self) -> Iterator[Text]:
        words = self.worker.words()
        yield Text(words[3])

    @walk
    def count(self, steps: int) -> Iterator[Text]:
        for _ in loop(steps=steps):
            yield Text(self.worker.run("ok"))

    @walk
    def emit_settings(self) -> Iterator[Text]:
        yield Text(self.worker.settings())

    async def route(self, request: ChatRequest) -> Any:
        case = str(request.messages[-1].parts[0])
        match case.partition("_")[0]:
            case "op" | "torch" | "detokenize":
                return await self.run_op(case)
            case "result":
                walks = {
                    "shape": self.run_shape,
                    "dtype": self.run_dtype,
                    "none": self.run_nothing,
                    "count": self.run_pair,
                }
                run = walks.get(case.partition("_")[2])
                return await (self.run_infinite(case) if run is None else run())
            case "batch":
                x = np.zeros((1, 2) if case == "batch_argument" else 2, np.float32)
                return await self.run_batch(x, case)
            case "state":
                return await self._fail_state(case)
            case "walk":
                return await self._fail_walk(case)
            case "route":
                return await self._fail_route(request, case)
        return await self.run_op("ok")

    async def _fail_result(self, case: str) -> None:
        match case:
            case "result_shape":
                await self.run_shape()
            case "result_dtype":
                await self.run_dtype()
            case "result_none":
                await self.run_nothing()
            case "result_count":
                await self.run_pair()
            case _:
                await self.run_infinite(case)

    async def _fail_state(self, case: str) -> None:
        if case == "state_create":
            await self.make_state()
        elif case == "state_fork":
            memory = self.worker.state(Memory)
            await self.keep_state(memory, "state_copy")
            await self.keep_state(memory.fork(), case)
        else:
            await self.run_state(case)

    async def _fail_walk(self, case: str) -> None:
        if case == "walk_index":
            await self.take_word()
        elif case == "walk_steps":
            await self.count("three")
        else:
            await self.emit_settings()

    async def _fail_route(self, request: Any, case: str) -> None:
        match case:
            case "route_raises":
                raise PermissionError("not on Sundays")  # route_raises
            case "route_typo":
                _ = request.txt  # route_typo
            case "route_unawaited":
                self.run_op("ok")
            case "route_op":
                self.worker.run("ok")  # route_op
            case "route_sleep":
                await asyncio.sleep(1)  # route_sleep
            case "route_arguments":
                await self.run_op("ok", 1)  # route_arguments
            case "route_unsupported":
                raise Unsupported("voices are a and b\n  fix: choose one of them")  # route_unsupported

    def detokenize(self, tokens: Sequence[int], /) -> str:
        if RAISING_TOKEN in tokens:
            raise UnicodeError("no such token")  # detokenize_raises
        return 7 if WRONG_TOKEN in tokens else bytes(tokens).decode()
