"""A component's method is not marked as an op."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Component, Int64, Model, Tensor, Text, walk


class Plain(Component):
    def scale(self, x: Int64[Tensor, "1"]) -> Int64[Tensor, "1"]:
        return x * 2  # mistake


class Author(Model):
    def __init__(self) -> None:
        self.part = Plain()

    @walk
    def speak(self, token: Int64[Tensor, "1"]) -> Iterator[Text]:
        yield Text(self.part.scale(token))
