"""A function of numpy is called on a value."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mstar import KV, Int64, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Text]:
        token = np.max(prompt)  # mistake
        yield Text(token)
