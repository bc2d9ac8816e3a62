"""A tensor without dtype and dimensions."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk  # mistake
    def speak(self, prompt: Tensor, kv: KV) -> Iterator[Text]:
        yield Text(self.lm.prefill(prompt, kv))
