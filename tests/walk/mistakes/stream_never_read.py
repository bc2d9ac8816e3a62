"""A stream is filled and never read."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Stream, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Text]:
        codes = Stream("codes")  # mistake
        token = self.lm.prefill(prompt, kv)
        codes.put(token)
        yield Text(token)
