"""Who fills a stream and who reads it emit the same modality."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Stream, Tensor, Text, loop, walk, windows
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Text]:
        codes = Stream("codes")
        s = loop(steps=99, token=self.lm.prefill(prompt, kv))
        for _ in s:
            codes.put(s.token)
            yield Text(s.token)
            s.token = self.lm.decode(s.token, kv)
        for window in windows(codes, size=28):  # mistake
            yield Text(window)
