"""A walk reads the shape of a tensor."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Tensor, Text, loop, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Text]:
        limit = prompt.shape[0] * 2  # mistake
        s = loop(steps=limit, token=self.lm.prefill(prompt, kv))
        for _ in s:
            s.token = self.lm.decode(s.token, kv)
        yield Text(s.token)
