"""A value of another width is given."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Float32, Latents, Model, Tensor, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def blend(self, one: Float32[Tensor, "N 80"], two: Float32[Tensor, "N 64"]) -> Iterator[Latents]:
        yield Latents(self.lm.add(one, two))  # mistake
