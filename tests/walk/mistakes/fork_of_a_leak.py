"""A state made inside a loop is forked after it."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Int64, Model, Tensor, Text, loop, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"]) -> Iterator[Text]:
        for _ in loop(steps=3):
            kv = self.lm.kv()
            self.lm.remember(prompt, kv)
        yield Text(self.lm.prefill(prompt, kv.fork()))  # mistake
