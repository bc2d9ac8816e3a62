"""A state is carried by a loop."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Int64, Model, Tensor, Text, loop, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"]) -> Iterator[Text]:
        kv = self.lm.kv()
        s = loop(steps=9, token=self.lm.prefill(prompt, kv), kv=kv)  # mistake
        for _ in s:
            s.token = self.lm.decode(s.token, s.kv)
        yield Text(s.token)
