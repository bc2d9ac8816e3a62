"""A chat model that calls tools by a script, in place of one that was trained on them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mstar import Component, Int64, Model, Tensor, Text, loop, op, walk
from mstar.requests import ChatRequest, Finish, ToolCall

CALL_START = "<call>"


class SlowLetters(Component):
    @op
    def letter(self, text: str, step: int) -> Int64[Tensor, "1"]:
        if text.startswith("slow"):
            time.sleep(0.02)
        return np.array([text.encode()[step]], np.int64)


class Scripted(Model):
    """The last user message is its script: a JSON list with a step for each round.

    A step is a text to say, or a list of calls, each a name with arguments. `{tools}` in a text becomes the names of
    the tools that the request offers, and `{results}` the results since the script.
    """

    def __init__(self) -> None:
        self.letters = SlowLetters()
        self.seen: list[ChatRequest] = []
        """Every request that reached the route."""

    @walk
    def say(self, text: str, steps: int) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.letters.letter(text, step))

    async def route(self, request: ChatRequest) -> Finish:
        self.seen.append(request)
        scripts = [index for index, message in enumerate(request.messages) if message.role == "user"]
        since = request.messages[scripts[-1] + 1 :]
        results = [str(part) for message in since if message.role == "tool" for part in message.parts]
        script = json.loads("".join(map(str, request.messages[scripts[-1]].parts)))
        step = script[sum(1 for message in since if message.role == "assistant")]
        calls: list[Any] = step if isinstance(step, list) else []
        text = CALL_START if isinstance(step, list) else step
        if calls and isinstance(calls[0], str):  # a text before the calls
            text, calls = calls[0] + CALL_START, calls[1:]
        text = text.replace("{tools}", ",".join(tool.name for tool in request.tools))
        text = text.replace("{results}", ",".join(results))
        await self.say(text, min(len(text.encode()), request.sampling.max_tokens))
        reason = "tool_calls" if calls else "stop" if len(text) <= request.sampling.max_tokens else "length"
        usage = {"text": sum(len(str(part)) for message in request.messages for part in message.parts)}
        return Finish(reason, usage, tuple(ToolCall("", name, json.dumps(arguments)) for name, arguments in calls))

    def detokenize(self, tokens: Sequence[int], /) -> str:
        return bytes(tokens).decode(errors="replace")

    def tool_call_start(self) -> str:
        return CALL_START
