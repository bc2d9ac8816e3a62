"""A chat model over three workers whose ops take a while and compute nothing: requests can be seen walking through it.

Its ops wait as they would for an accelerator, and leave the processor to the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mstar import Component, Model, Stream, Text, loop, op, rows, stacked, walk
from mstar.asks import Chat

PLACES = '[models.model.place]\nmind = "mind"\ntaste = "taste"\nmouth = "mouth"\n'
"""As a manifest says it."""


def _waited(wait: Any) -> None:
    time.sleep(max(rows(wait)))


class Mind(Component):
    @op(batch=stacked)
    def read(self, words: int, wait: float) -> int:
        _waited(wait)
        return words

    @op(batch=stacked)
    def think(self, step: int, wait: float) -> int:
        _waited(wait)
        return step


class Taste(Component):
    @op(batch=stacked)
    def weigh(self, thought: int, wait: float) -> int:
        _waited(wait)
        return thought


class Mouth(Component):
    @op(batch=stacked)
    def say(self, thought: int, wait: float) -> str:
        _waited(wait)
        made: Any = [f"{one} " for one in rows(thought)]
        return made


class Stroll(Model):
    """Asked for "30 0.05" it says thirty words, and each op takes so many seconds."""

    def __init__(self) -> None:
        self.mind, self.taste, self.mouth = Mind(), Taste(), Mouth()

    @walk
    def answer(self, words: int, wait: float) -> Iterator[Text]:
        thoughts = Stream("thoughts")
        wanted = self.mind.read(words, wait)
        for step in loop(steps=wanted):
            thoughts.put(self.taste.weigh(self.mind.think(step, wait), wait))
        for _ in loop(steps=wanted):  # runs while the loop above still runs
            yield Text(self.mouth.say(thoughts.get(default=0), wait))

    async def route(self, request: Chat) -> None:
        words, wait = str(request.turns[-1].parts[0]).split()
        await self.answer(int(words), float(wait))
