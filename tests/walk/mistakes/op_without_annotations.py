"""An op without annotations."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Component, Int64, Model, Tensor, Text, op, walk


class Plain(Component):
    @op  # mistake
    def decode(self, token, kv):
        return token


class Author(Model):
    def __init__(self) -> None:
        self.lm = Plain()

    @walk
    def speak(self, token: Int64[Tensor, "1"]) -> Iterator[Text]:
        kv = self.lm.kv()
        token = self.lm.decode(token, kv)
        yield Text(self.lm.decode(token, kv))
