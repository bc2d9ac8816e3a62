"""A tensor is indexed by a tensor."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, table: Int64[Tensor, "N 1"], token: Int64[Tensor, "1"], kv: KV) -> Iterator[Text]:
        yield Text(self.lm.decode(table[token], kv))  # mistake
