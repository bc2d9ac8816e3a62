"""A method of a component is called that is not marked as an op."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Component, Int64, Model, Tensor, Text, walk


class Encoder(Component):
    def encode(self, prompt: Int64[Tensor, "T"]) -> Int64[Tensor, "T"]:
        return self.embedding(prompt) + 1

    def scale(self, prompt: Int64[Tensor, "T"]) -> Int64[Tensor, "T"]:
        return self._shift(prompt) * 2

    def _shift(self, prompt: Int64[Tensor, "T"]) -> Int64[Tensor, "T"]:
        return prompt - 1

    def shout(self, prompt: Int64[Tensor, "T"]) -> Int64[Tensor, "T"]:
        raise ValueError("a tensor is needed")


class Author(Model):
    def __init__(self) -> None:
        self.encoder = Encoder()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"]) -> Iterator[Text]:
        yield Text(self.encoder.encode(prompt))  # mistake
        yield Text(self.encoder.scale(prompt))  # mistake
        yield Text(self.encoder.shout(prompt))  # mistake
