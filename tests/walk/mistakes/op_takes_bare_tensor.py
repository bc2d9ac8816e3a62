"""An op that takes any tensor."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Component, Int64, Model, Tensor, Text, op, walk


class Plain(Component):
    @op  # mistake
    def decode(self, token: Tensor) -> Int64[Tensor, "1"]:
        return token


class Author(Model):
    def __init__(self) -> None:
        self.lm = Plain()

    @walk
    def speak(self, token: Int64[Tensor, "1"]) -> Iterator[Text]:
        yield Text(self.lm.decode(token))
