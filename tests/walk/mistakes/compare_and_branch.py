"""One mistake in two steps is one problem."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV, limit: int) -> Iterator[Text]:
        if limit > 5:  # mistake
            yield Text(self.lm.prefill(prompt, kv))
