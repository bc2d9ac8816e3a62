"""A state is collected."""

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
            kv = self.lm.kv()
            token = self.lm.prefill(prompt, kv)
            e.collect(token=token, kv=kv)  # mistake
        yield Text(e.token)
