"""An op gives two things, and they are taken for one."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, token: Int64[Tensor, "1"], kv: KV) -> Iterator[Text]:
        token = self.lm.think(token, kv)
        yield Text(self.lm.decode(token, kv))  # mistake
