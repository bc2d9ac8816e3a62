"""The arms of a choice give different things."""

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
        answer = choose(  # mistake
            self.lm.is_end(token),
            lambda: token,
            lambda: self.lm.think(token, kv),
        )
        yield Text(answer)
