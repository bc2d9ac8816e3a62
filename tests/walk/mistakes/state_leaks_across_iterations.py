"""A state is made in one iteration and used in the next."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Tensor, Text, loop, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, token: Int64[Tensor, "1"], kv: KV) -> Iterator[Text]:
        for _ in loop(steps=3):
            yield Text(self.lm.decode(token, kv))  # mistake
            kv = self.lm.kv()
