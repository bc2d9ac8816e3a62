"""A tensor's method is called in a walk."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Latents, Model, Tensor, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Latents]:
        yield Latents(self.lm.embed(prompt).mean(dim=0))  # mistake
