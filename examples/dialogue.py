"""A dialogue: the route waits for its client, who may cut an answer short.

What was said is in the model's cache, so a turn costs what is new in it. A walk that is cut leaves the cache as it was
before; the route then reads as much of the answer as the client says it has heard, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from mstar import INTERRUPTED, KV, ClientInput, Int64, Model, Tensor, Text, loop, walk
from mstar.testing.toy_language import MixtureLM


@dataclass
class DialogueTurn:
    text: str
    heard_tokens: tuple[int, ...] = ()  # what was heard of the answer before, if that was cut


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

    async def route(self, request: DialogueTurn) -> int:
        kv, said, turns = self.lm.kv(), request, 0
        while said is not None:
            turns += 1
            token = await self.read(self.lm.tokenize(said.text), kv)
            last = await self.answer(token, kv).interruptible()
            said = await self.next_input(answer="cut" if last is INTERRUPTED else "done")
            if said is not None and said.heard and last is INTERRUPTED:
                await self.read(np.array(said.heard, np.int64), kv)
        return turns


def requests() -> list[DialogueTurn]:
    return [DialogueTurn("hello"), DialogueTurn("a longer beginning")]


def client_inputs() -> list[ClientInput]:
    """What a client says: the first cuts the answer after nine tokens, of which it heard four."""
    return [
        ClientInput(DialogueTurn("wait", heard_tokens=(3, 1, 4, 1)), walk=1, counts={"Text": 9}),
        ClientInput(DialogueTurn("and then?"), walk=5),
    ]
