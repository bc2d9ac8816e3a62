"""An each over a number."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Int64, Model, Tensor, Text, each, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], tries: int) -> Iterator[Text]:
        e = each(tries)  # mistake
        for _ in e:
            e.collect(token=self.lm.prefill(prompt, self.lm.kv()))
        yield Text(e.token)
