"""A state is taken as a walk's input without saying which."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Int64, Model, Tensor, Text, walk
from tests.walk.toy_components import LM, Past


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: Past) -> Iterator[Text]:
        yield Text(self.lm.prefill(prompt, kv))  # mistake
