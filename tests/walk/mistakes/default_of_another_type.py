"""The default of a get is no item of its stream."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Audio, Int64, Model, Stream, Tensor, loop, walk
from tests.walk.toy_components import LM, Codec


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()
        self.codec = Codec()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Audio]:
        codes = Stream("codes")
        s = loop(steps=99, token=self.lm.prefill(prompt, kv))
        for _ in s:
            codes.put(s.token)
            s.token = self.lm.decode(s.token, kv)
        for _ in loop(steps=99):
            yield Audio(self.codec.one(codes.get(default=0)), rate=24_000)  # mistake
