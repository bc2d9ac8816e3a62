"""A loop whose condition is computed each time ends while tracing."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Text]:
        token = self.lm.prefill(prompt, kv)
        while True:
            if self.lm.is_end(token) and self.lm.is_end(token):  # mistake
                yield Text(token)
