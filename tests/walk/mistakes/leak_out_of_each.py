"""A value made in an each is used after it."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Latents, Model, Tensor, each, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompts: list[Int64[Tensor, "T"]], kv: KV) -> Iterator[Latents]:
        for prompt in each(prompts):
            last = self.lm.embed(prompt)
        yield Latents(last)  # mistake
