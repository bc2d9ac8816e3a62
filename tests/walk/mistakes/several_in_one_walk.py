"""All problems of a walk are reported at once."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Audio, Int64, Model, Stream, Tensor, Text, loop, walk, windows
from tests.walk.toy_components import LM, Codec


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()
        self.codec = Codec()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Text | Audio]:
        codes = Stream("codes")
        token = self.lm.prefil(prompt, kv)  # mistake
        s = loop(steps=2.5, token=token)  # mistake
        for _ in s:
            codes.put(s.token)
            s.token = self.lm.decode(s.token)  # mistake
            s.stop_when(prompt)  # mistake
            yield Text(prompt + 1)  # mistake
        for window in windows(codes, size=28):
            yield Audio(self.codec.decode(window), rate=self.lm.start())  # mistake
