"""A walk calls another walk."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def read(self, prompt: Int64[Tensor, "T"], kv: KV) -> Int64[Tensor, "1"]:
        return self.lm.prefill(prompt, kv)

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Text]:
        token = self.read(prompt, kv)  # mistake
        yield Text(self.lm.decode(token, kv))
