"""One loop fills and reads a stream."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Stream, Tensor, Text, loop, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Text]:
        codes = Stream("codes")
        s = loop(steps=99, token=self.lm.prefill(prompt, kv))
        for _ in s:  # mistake
            codes.put(s.token)
            s.token = self.lm.decode(codes.get(default=s.token), kv)
        yield Text(s.token)
