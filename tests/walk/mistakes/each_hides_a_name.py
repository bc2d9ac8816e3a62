"""A collection has a name that each uses itself."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Int64, Model, Tensor, Text, each, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompts: list[Int64[Tensor, "T"]]) -> Iterator[Text]:
        e = each(prompts)
        for prompt in e:
            e.collect(items=self.lm.prefill(prompt, self.lm.kv()))  # mistake
        yield Text(e.items[0])
