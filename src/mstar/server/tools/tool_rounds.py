"""Tool loop: a model calls tools of MCP servers, the front end runs the calls, and the model continues.

1. A round is one request of the runtime. If a worker dies, the runtime replays this round, and its outputs are
   delivered once. No call is made meanwhile.
2. When a round has ended with calls, the front end makes each of them once, in order. Nothing replays them.
3. The calls and their results extend the conversation, and the next round begins: at 1.

The loop ends with a round without calls, with calls of the client's own functions, or after `max_rounds` rounds with
calls: the model then answers without server tools.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from mstar.frontend.response_stream import ResponseStream
from mstar.requests import ChatRequest, Grammar, Message, Tool, ToolCall
from mstar.server.errors import ApiError
from mstar.server.openai.completion import Choice, CompletionReader, Delta
from mstar.server.tools.server_tools import ServerCall, ServerTools

StartRound = Callable[..., ResponseStream]
"""Starts the request of a round; `remaining_s` are the seconds until the time limit of the whole loop."""


@dataclass(frozen=True, slots=True)
class ToolLoop:
    """How the rounds of a request are made."""

    server_tools: ServerTools
    client_tools: tuple[Tool, ...]
    """Functions of the client: their calls end the loop."""
    grammar: Grammar | None
    """Grammar of the rounds after the first one: `tool_choice` forces the first one only."""
    make_choice: Callable[[ChatRequest, int], Choice]
    """Makes the choice of a round after the first one, from its request and number."""
    max_rounds: int
    timeout_s: float
    on_call: Callable[[], None]
    """Called before a tool is called."""


class ToolRounds(CompletionReader):
    """Reads all rounds of a completion with one choice as one sequence of deltas."""

    def __init__(
        self, stream: ResponseStream, chat: ChatRequest, choice: Choice, loop: ToolLoop, start: StartRound
    ) -> None:
        super().__init__(stream, [choice], 1)
        self._chat = chat
        self._loop = loop
        self._start = start
        self._round = 0
        self._first: list[Delta] = []
        """Deltas that `wait_first` has read."""
        self._deadline = asyncio.get_running_loop().time() + loop.timeout_s
        self._calls: tuple[ToolCall, ...] = ()
        """Calls of the round that has ended."""
        self._pending = deque[ToolCall]()
        """Those of them that were not made yet."""
        self._results = list[Message]()
        self._client_calls: tuple[ToolCall, ...] = ()
        self._earlier_usage: list[dict[str, Any] | None] = []

    async def wait_first(self) -> None:
        """Wait for the first deltas, so that an early error still sets the HTTP status."""
        self._first = await self.read_ready()

    async def read_ready(self) -> list[Delta]:
        """Deltas of the current round, or of the call that is due."""
        if self._first:
            first, self._first = self._first, []
            return first
        if self._pending:
            return await self._make_call()
        if self._results and not self._client_calls:
            await self._start_round()
        deltas = await super().read_ready()
        if deltas and deltas[-1].is_end and self._take_calls():
            deltas[-1] = msgspec.structs.replace(deltas[-1], is_end=False)
            deltas.append(self._begin_call())
        return deltas

    def usage(self) -> dict[str, Any] | None:
        """Token usage of all rounds. Each round reads the conversation again, which the prefix cache makes cheap."""
        usages = [*self._earlier_usage, super().usage()]
        known = [usage for usage in usages if usage is not None]
        return _add_usages(known) if len(known) == len(usages) else None

    # ---------------------------------------------------------------- calls
    def _take_calls(self) -> bool:
        """Take the calls of server tools of the round that has ended. False if there are none to make."""
        (choice,) = self.choices
        if choice.finish_reason != "tool_calls":
            return False
        names = {tool.name for tool in self._loop.client_tools}
        calls = choice.calls()
        self._client_calls = tuple(call for call in calls if call.name in names)
        choice.keep_calls(self._client_calls)
        if self._round == self._loop.max_rounds:  # no server tool was offered any more
            return False
        self._calls = calls
        self._pending.extend(call for call in calls if call.name not in names)
        return bool(self._pending)

    def _begin_call(self) -> Delta:
        call = self._pending[0]
        return Delta(0, {}, [], server_call=ServerCall(call, self._loop.server_tools.label_of(call.name)))

    async def _make_call(self) -> list[Delta]:
        call, server_tools = self._pending.popleft(), self._loop.server_tools
        remaining_s = self._remaining_s()
        self._loop.on_call()
        result = await server_tools.call(call, remaining_s)
        self._results.append(Message("tool", (tool_message(result.text, is_error=result.is_error),), (), call.id))
        deltas = [Delta(0, {}, [], server_call=ServerCall(call, server_tools.label_of(call.name), result))]
        if self._pending:
            deltas.append(self._begin_call())
        elif self._client_calls:
            deltas.append(Delta(0, {}, [], is_end=True))
        return deltas

    # ---------------------------------------------------------------- rounds
    async def _start_round(self) -> None:
        """Start the round after the calls."""
        (earlier,) = self.choices
        self._round += 1
        self._earlier_usage.append(super().usage())
        self._chat = self._next_request(earlier)
        choice = self._loop.make_choice(self._chat, self._round)
        choice.continue_from(earlier)
        self.choices = [choice]
        self._results.clear()
        while True:
            try:
                self._stream.close()
                self._stream = self._start(self._chat, remaining_s=self._remaining_s())
                self._prefetched = await super().read_ready()
                return
            except ApiError as error:  # rejected, because the runtime is full: nothing of the round has run
                if error.retry_after is None or error.retry_after >= self._remaining_s():
                    raise
                await asyncio.sleep(error.retry_after)

    def _next_request(self, earlier: Choice) -> ChatRequest:
        chat, loop = self._chat, self._loop
        used = sum((earlier.completion_tokens or {}).values())
        sampling = replace(chat.sampling, grammar=loop.grammar, max_tokens=max(1, chat.sampling.max_tokens - used))
        server_tools = loop.server_tools.tools if self._round < loop.max_rounds else []
        content = (earlier.content,) if earlier.content else ()
        messages = (*chat.messages, Message("assistant", content, self._calls), *self._results)
        return replace(chat, messages=messages, sampling=sampling, tools=(*loop.client_tools, *server_tools))

    def _remaining_s(self) -> float:
        remaining_s = self._deadline - asyncio.get_running_loop().time()
        if remaining_s <= 0:
            message = f"the request and its tool calls exceeded {self._loop.timeout_s:g} s (request_timeout_s)"
            raise ApiError(504, "deadline_exceeded", message)
        return remaining_s


def tool_message(text: str, *, is_error: bool) -> str:
    """Text of a tool message: chat templates have no field for an error."""
    return f"Error: {text}" if is_error else text


def _add_usages(usages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sum of usage objects, whose values are numbers or such objects."""
    total = dict[str, Any]()
    for name in {name: None for usage in usages for name in usage}:
        values = [usage[name] for usage in usages if name in usage]
        total[name] = _add_usages(values) if isinstance(values[0], dict) else sum(values)
    return total
