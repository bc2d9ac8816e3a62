"""An op gives two things, and three are unpacked."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, token: Int64[Tensor, "1"], kv: KV) -> Iterator[Text]:
        token, hidden, logits = self.lm.think(token, kv)  # mistake
        yield Text(self.lm.pick(token, hidden, logits))
