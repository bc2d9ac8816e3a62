"""A loop is left by return."""

from __future__ import annotations

from mstar import KV, Int64, Model, Tensor, loop, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Int64[Tensor, "1"]:
        s = loop(steps=9, token=self.lm.prefill(prompt, kv))
        for _ in s:
            return self.lm.decode(s.token, kv)  # mistake
