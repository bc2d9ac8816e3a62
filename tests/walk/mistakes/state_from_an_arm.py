"""A state is given by the arms of a choice."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Tensor, Text, choose, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, token: Int64[Tensor, "1"], one: KV, two: KV) -> Iterator[Text]:
        kv = choose(self.lm.is_end(token), one, two)  # mistake
        yield Text(self.lm.decode(token, kv))
