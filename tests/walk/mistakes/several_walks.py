"""All problems of all walks are reported at once."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def read(self, prompt: Int64[Tensor, "T"], kv: KV) -> None:
        self.lm.remember(prompt)  # mistake

    @walk
    def fine(self, prompt: Int64[Tensor, "T"], kv: KV) -> None:
        self.lm.remember(prompt, kv)

    @walk
    def speak(self, token: Int64[Tensor, "1"], kv: KV) -> Iterator[Text]:
        if token:  # mistake
            yield Text(token)
