"""A codec is given an attention cache."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Audio, Int64, Model, Tensor, walk
from tests.walk.toy_components import LM, Codec


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()
        self.codec = Codec()

    @walk
    def speak(self, codes: Int64[Tensor, "N 1"]) -> Iterator[Audio]:
        yield Audio(self.codec.sound(codes, self.codec.kv()), rate=24_000)  # mistake
