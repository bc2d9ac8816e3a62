"""A carry gets another type."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Latents, Model, Tensor, loop, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Latents]:
        s = loop(steps=9, x=prompt)
        for _ in s:
            s.x = self.lm.embed(prompt)  # mistake
        yield Latents(s.x)
