"""A walk returns an emission instead of yielding it."""

from __future__ import annotations

from mstar import KV, Int64, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk  # mistake
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Text:
        return Text(self.lm.prefill(prompt, kv))
