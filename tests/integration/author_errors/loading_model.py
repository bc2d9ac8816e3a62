"""A small model, into which a test writes failures of the start."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mstar import Component, Int64, Model, Tensor, Text, op, walk
from mstar.requests import ChatRequest

SIZE = 1  # module


class Encoder(Component):
    def prepare(self) -> None:
        self.size = 1  # prepare

    @op
    def encode(self, text: str) -> Int64[Tensor, "1"]:
        return np.array([ord(text[0])], np.int64) + self.offset

    offset = 0


class Loading(Model):
    def __init__(self) -> None:
        self.encoder = Encoder()
        self.size = 1  # constructor

    @walk
    def answer(self, text: str) -> Iterator[Text]:
        yield Text(self.encoder.encode(text))

    async def route(self, request: ChatRequest) -> None:
        await self.answer(str(request.messages[-1].parts[0]))

    def warmup_requests(self):
        return []  # warm-up

    def detokenize(self, tokens, /):
        return bytes(tokens).decode()
