"""Two embeddings of different prompts are added."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Int64, Latents, Model, Tensor, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def blend(self, one: Int64[Tensor, "A"], two: Int64[Tensor, "B"]) -> Iterator[Latents]:
        yield Latents(self.lm.add(self.lm.embed(one), self.lm.embed(two)))  # mistake
