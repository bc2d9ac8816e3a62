"""A thread: one request that a realtime call goes on with, as long as what it has heard is what was said.

A model whose route goes on with its client is told only what is new, and keeps the rest. When the conversation was
changed behind it, or its settings were, and with any model whose route ends with its answer, the next answer is asked
for with all that was said. Both give the same; the first costs less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mstar.frontend.response_stream import ResponseStream
from mstar.requests import ChatRequest
from mstar.server.errors import ApiError
from mstar.server.realtime.conversation import Item
from mstar.server.state import ServedModel
from mstar.server.websocket_session import WebSocketSession

STOP_TURN = ChatRequest((), multi_turn=True)
"""What is said to have an answer ended."""
STOP_TIMEOUT_S = 0.3
"""A request that does not end its answer within so many seconds is ended itself: its route does not listen."""


class ChatContinuation:
    """What a call has asked of one model."""

    def __init__(self, websocket: WebSocketSession, served_model: ServedModel) -> None:
        self._websocket = websocket
        self._served_model = served_model
        self._stream: ResponseStream | None = None
        self._known_items: list[tuple[str, str]] = []
        """The items that the request has heard: their names, and what the model itself is taken to have said."""
        self._settings: tuple[Any, ...] = ()
        self._is_interruptible = True
        """Whether its route is known, or hoped, to end an answer when it is asked to."""

    def request_turn(self, chat: ChatRequest, items: Sequence[Item], instructions: str) -> ResponseStream:
        """Have a chat answered that was made of these; to be read for one turn."""
        marks = [(item.id, item.text) for item in items]
        manner = (chat.tools, chat.audio_output, chat.voice, instructions)
        known = len(self._known_items)
        if (
            self._stream is None
            or self._stream.is_finished
            or manner != self._settings
            or marks[:known] != self._known_items
        ):
            self.close()
            asked = replace(chat, multi_turn=True)
            self._stream = self._websocket.state.start_requests(
                self._served_model, asked, context=self._websocket.context, multi_turn=True
            )
        else:
            turns = (turn for item in items[known:] if (turn := item.message) is not None)
            self._stream.send_input(replace(chat, messages=tuple(turns), multi_turn=True))
        self._known_items, self._settings = marks, manner
        return self._stream

    async def interrupt(self) -> None:
        """Have the answer that is being given ended; nothing more of it comes."""
        if self._stream is None or self._stream.is_finished or not self._is_interruptible:
            self.close()
            return
        self._stream.send_input(STOP_TURN)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                async for _ in self._stream.turn():
                    pass  # what was on its way
        except (ApiError, TimeoutError, asyncio.CancelledError):
            self._is_interruptible = False
            self.close()

    def close(self) -> None:
        """Want no more."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
