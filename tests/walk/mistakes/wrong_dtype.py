"""Embeddings are given where tokens are wanted."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Float32, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Float32[Tensor, "T"], kv: KV) -> Iterator[Text]:
        yield Text(self.lm.prefill(prompt, kv))  # mistake
