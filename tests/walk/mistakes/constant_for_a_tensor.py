"""A number is passed where a tensor is wanted."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Model, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, kv: KV) -> Iterator[Text]:
        yield Text(self.lm.decode(0, kv))  # mistake
