"""A consequence of a problem is not reported again."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Audio, Int64, Model, Tensor, Text, choose, each, loop, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, table: Int64[Tensor, "N 1"], kv: KV) -> Iterator[Text]:
        at = self.lm.best(table)  # mistake
        token = table[at]
        if at > 3:
            yield Text(at.shape[0])
        yield Audio(token, rate=at)
        yield at
        yield Text(self.lm.decode(token, at.fork()))
        s = loop(steps=at, token=at)
        for _ in s:
            s.token = self.lm.decode(s.token, kv)
            s.stop_when(at)
            s.collect(at=at)
        yield Text(choose(at, at, s.at))
        for item in each(at):
            self.lm.remember(item, kv)
        for item in at:
            yield Text(item + 1)
