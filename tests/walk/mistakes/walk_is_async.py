"""A walk is written like a route."""

from __future__ import annotations

from mstar import KV, Int64, Model, Tensor, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk  # mistake
    async def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> None:
        self.lm.prefill(prompt, kv)
