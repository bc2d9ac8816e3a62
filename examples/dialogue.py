"""Dialogue: a multi-turn route with interruption (barge-in).

The KV cache keeps the conversation, so that a turn costs only its new tokens. An interrupted walk leaves the cache as
it was before; the route then reads the part of the answer that the client played, and continues from there.
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
    played_tokens: tuple[int, ...] = ()  # part of the previous answer that was played before the interruption


class Dialogue(Model):
    """Answers one turn after another."""

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
        kv, turn, turns = self.lm.kv(), request, 0
        while turn is not None:
            turns += 1
            token = await self.read(self.lm.tokenize(turn.text), kv)
            last = await self.answer(token, kv).interruptible()
            turn = await self.next_input(answer="cut" if last is INTERRUPTED else "done")
            if turn is not None and turn.played_tokens and last is INTERRUPTED:
                await self.read(np.array(turn.played_tokens, np.int64), kv)
        return turns


def requests() -> list[DialogueTurn]:
    return [DialogueTurn("hello"), DialogueTurn("a longer beginning")]


def client_inputs() -> list[ClientInput]:
    """Inputs of a client. The first interrupts the answer after nine tokens, of which four were played."""
    return [
        ClientInput(DialogueTurn("wait", played_tokens=(3, 1, 4, 1)), walk=1, counts={"Text": 9}),
        ClientInput(DialogueTurn("and then?"), walk=5),
    ]
