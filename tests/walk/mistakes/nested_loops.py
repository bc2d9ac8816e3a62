"""A mistake inside two loops is reported once."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Tensor, Text, loop, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Text]:
        s = loop(steps=9, token=self.lm.prefill(prompt, kv))
        for _ in s:
            t = loop(steps=3, token=s.token)
            for _ in t:
                t.token = self.lm.decode(t.token)  # mistake
            s.token = t.token
            yield Text(s.token)
