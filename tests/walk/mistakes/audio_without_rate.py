"""Sound without its clock."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Audio, Int64, Model, Tensor, walk
from tests.walk.toy_components import LM, Codec


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()
        self.codec = Codec()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Audio]:
        yield Audio(self.codec.one(self.lm.prefill(prompt, kv)))  # mistake
