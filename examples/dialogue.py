"""A dialogue: the route waits for its client, who may cut an answer short.

What was said is in the model's cache, so a turn costs what is new in it. A walk that is cut leaves the cache as it was
before; the route then reads as much of the answer as the client says it has heard, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from mstar import CUT, KV, Int64, Model, Said, Tensor, Text, loop, walk
from mstar.testing.toys import MixtureLM


@dataclass
class Words:
    text: str
    heard: tuple[int, ...] = ()  # what was heard of the answer before, if that was cut


class Dialogue(Model):
    """Answers again and again."""

    def __init__(self) -> None:
        self.lm = MixtureLM(vocab=23)

    @walk
    def read(self, tokens: Int64[Tensor, "T"], kv: KV) -> Int64[Tensor, "1"]:
        return self.lm.prefill(tokens, kv)

    @walk
    def answer(self, token: Int64[Tensor, "1"], kv: KV) -> Generator[Text, None, Int64[Tensor, "1"]]:
        s = loop(steps=40, token=token)
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.decode(s.token, kv)
        return s.token

    async def route(self, request: Words) -> int:
        kv, said, turns = self.lm.kv(), request, 0
        while said is not None:
            turns += 1
            token = await self.read(self.lm.tokenize(said.text), kv)
            last = await self.answer(token, kv).until_more()
            said = await self.more(answer="cut" if last is CUT else "done")
            if said is not None and said.heard and last is CUT:
                await self.read(np.array(said.heard, np.int64), kv)
        return turns


def requests() -> list[Words]:
    return [Words("hello"), Words("a longer beginning")]


def says() -> list[Said]:
    """What a client says: the first cuts the answer after nine tokens, of which it heard four."""
    return [Said(Words("wait", heard=(3, 1, 4, 1)), walk=1, counts={"Text": 9}), Said(Words("and then?"), walk=5)]
