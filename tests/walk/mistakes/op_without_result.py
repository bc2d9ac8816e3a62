"""An op that does not say what it gives."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Component, Int64, Model, Tensor, Text, op, walk


class Plain(Component):
    @op  # mistake
    def decode(self, token: Int64[Tensor, "1"]):
        return token


class Author(Model):
    def __init__(self) -> None:
        self.lm = Plain()

    @walk
    def speak(self, token: Int64[Tensor, "1"]) -> Iterator[Text]:
        yield Text(self.lm.decode(token))
