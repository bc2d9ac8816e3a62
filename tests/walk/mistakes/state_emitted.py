"""A state is emitted."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Latents, Model, Tensor, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Latents]:
        self.lm.remember(prompt, kv)
        yield Latents(kv)  # mistake
