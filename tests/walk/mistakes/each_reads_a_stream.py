"""The bodies of an each read one stream."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Int64, Model, Stream, Tensor, Text, each, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompts: list[Int64[Tensor, "T"]], token: Int64[Tensor, "1"]) -> Iterator[Text]:
        codes = Stream("codes")
        codes.put(token)
        e = each(prompts)
        for _ in e:
            e.collect(token=codes.get(default=token))  # mistake
        yield Text(e.token)
