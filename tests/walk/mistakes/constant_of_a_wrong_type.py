"""A constant of a wrong type is passed."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Int64, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"]) -> Iterator[Text]:
        yield Text(self.lm.scale(prompt, "0.7"))  # mistake
