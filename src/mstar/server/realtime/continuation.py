"""Multi-turn continuation: keeps one request open over the turns of a realtime session, so its KV cache is reused.

A multi-turn route gets only the new messages of each turn. The whole conversation is sent in a new request instead if

1. the model's route ends after each response,
2. items that the request has already seen were changed, deleted or truncated, or
3. the tools, the voice, the output modality or the instructions changed.

Both ways produce the same response; the first is cheaper.
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
"""Input that tells a multi-turn route to end its current response (barge-in)."""
STOP_TIMEOUT_S = 0.3
"""Seconds to wait for a route to end its response after STOP_TURN; then the request is cancelled."""


class ChatContinuation:
    """The open request of one session, and which items of the conversation it has seen."""

    def __init__(self, websocket: WebSocketSession, served_model: ServedModel) -> None:
        self._websocket = websocket
        self._served_model = served_model
        self._stream: ResponseStream | None = None
        self._known_items: list[tuple[str, str]] = []
        """Id and assistant text of the items that the open request has seen."""
        self._settings: tuple[Any, ...] = ()
        self._is_interruptible = True
        """Whether the route reacts to STOP_TURN; assumed until it times out once."""

    def request_turn(self, chat: ChatRequest, items: Sequence[Item], instructions: str) -> ResponseStream:
        """Start or continue a request for one response; read `turn()` of the returned stream.

        `chat` holds the whole conversation; `items` and `instructions` are what it was built from. Raises ApiError.
        """
        self._websocket.state.text_budget.check(self._served_model.model, chat)
        current_items = [(item.id, item.text) for item in items]
        settings = (chat.tools, chat.audio_output, chat.voice, instructions)
        known = len(self._known_items)
        if (
            self._stream is None
            or self._stream.is_finished
            or settings != self._settings
            or current_items[:known] != self._known_items
        ):
            self.close()
            request = replace(chat, multi_turn=True)
            self._stream = self._websocket.state.start_requests(
                self._served_model, request, context=self._websocket.context, multi_turn=True
            )
        else:
            messages = (message for item in items[known:] if (message := item.message) is not None)
            self._stream.send_input(replace(chat, messages=tuple(messages), multi_turn=True))
        self._known_items, self._settings = current_items, settings
        return self._stream

    async def interrupt(self) -> None:
        """End the current response and discard the rest of its output."""
        if self._stream is None or self._stream.is_finished or not self._is_interruptible:
            self.close()
            return
        self._stream.send_input(STOP_TURN)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                async for _ in self._stream.turn():
                    pass  # output that was already under way
        except (ApiError, TimeoutError, asyncio.CancelledError):
            self._is_interruptible = False
            self.close()

    def close(self) -> None:
        """Cancel the open request. Idempotent."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
