"""A value made in an arm is used outside it."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Tensor, Text, choose, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Text]:
        token = self.lm.prefill(prompt, kv)
        made = []

        def decode() -> None:
            made.append(self.lm.decode(token, kv))

        choose(self.lm.is_end(token), None, decode)
        yield Text(made[0])  # mistake
