"""A chat model over three workers whose ops take a while and compute nothing: requests can be seen walking through it.

Its ops wait as they would for an accelerator, and leave the processor to the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mstar import Component, Model, Stream, Text, loop, op, rows, stacked, walk
from mstar.requests import ChatRequest

PLACEMENT = '[models.model.place]\nplanner = "planner"\nscorer = "scorer"\nwriter = "writer"\n'
"""As a manifest says it."""


def _wait(wait: Any) -> None:
    time.sleep(max(rows(wait)))


class Planner(Component):
    @op(batch=stacked)
    def read(self, words: int, wait: float) -> int:
        _wait(wait)
        return words

    @op(batch=stacked)
    def plan_step(self, step: int, wait: float) -> int:
        _wait(wait)
        return step


class Scorer(Component):
    @op(batch=stacked)
    def score(self, thought: int, wait: float) -> int:
        _wait(wait)
        return thought


class Writer(Component):
    @op(batch=stacked)
    def write(self, thought: int, wait: float) -> str:
        _wait(wait)
        made: Any = [f"{one} " for one in rows(thought)]
        return made


class ThreeWorkerChat(Model):
    """For the prompt "30 0.05" it generates thirty words, and each op takes 0.05 s."""

    def __init__(self) -> None:
        self.planner, self.scorer, self.writer = Planner(), Scorer(), Writer()

    @walk
    def answer(self, words: int, wait: float) -> Iterator[Text]:
        thoughts = Stream("thoughts")
        wanted = self.planner.read(words, wait)
        for step in loop(steps=wanted):
            thoughts.put(self.scorer.score(self.planner.plan_step(step, wait), wait))
        for _ in loop(steps=wanted):  # runs while the loop above still runs
            yield Text(self.writer.write(thoughts.get(default=0), wait))

    async def route(self, request: ChatRequest) -> None:
        words, wait = str(request.messages[-1].parts[0]).split()
        await self.answer(int(words), float(wait))
