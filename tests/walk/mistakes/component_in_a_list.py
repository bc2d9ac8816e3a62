"""Components are kept in a list, so they have no names."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Int64, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.parts = [LM(), LM()]

    @walk
    def speak(self, prompt: Int64[Tensor, "T"]) -> Iterator[Text]:
        first = self.parts[0]
        kv = first.kv()  # mistake
        yield Text(first.prefill(prompt, kv))
