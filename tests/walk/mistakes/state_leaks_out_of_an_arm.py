"""A state made in an arm is used outside it."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Int64, Model, Tensor, Text, choose, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, token: Int64[Tensor, "1"]) -> Iterator[Text]:
        made = []

        def make() -> None:
            made.append(self.lm.kv())

        choose(self.lm.is_end(token), make, None)
        yield Text(self.lm.decode(token, made[0]))  # mistake
