"""One language model is given the other's cache."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Int64, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()
        self.other = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"]) -> Iterator[Text]:
        kv = self.lm.kv()
        token = self.lm.prefill(prompt, kv)
        yield Text(self.other.decode(token, kv))  # mistake
