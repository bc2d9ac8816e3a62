"""A plain variable is meant to cross iterations."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Tensor, Text, loop, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Text]:
        token = self.lm.prefill(prompt, kv)
        for _ in loop(steps=9):
            yield Text(token)  # mistake
            token = self.lm.decode(token, kv)
