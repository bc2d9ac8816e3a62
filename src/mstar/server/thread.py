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

from mstar.asks import Chat
from mstar.server.calls import Call
from mstar.server.conversation import Item
from mstar.server.door import Served
from mstar.server.live import Live
from mstar.server.refusals import Refusal

QUIET = Chat((), continues=True)
"""What is said to have an answer ended."""
QUIET_S = 0.3
"""A request that does not end its answer within so many seconds is ended itself: its route does not listen."""


class Thread:
    """What a call has asked of one model."""

    def __init__(self, call: Call, served: Served) -> None:
        self._call = call
        self._served = served
        self._live: Live | None = None
        self._known: list[tuple[str, str]] = []
        """The items that the request has heard: their names, and what the model itself is taken to have said."""
        self._manner: tuple[Any, ...] = ()
        self._listens = True
        """Whether its route is known, or hoped, to end an answer when it is asked to."""

    def ask(self, chat: Chat, items: Sequence[Item], instructions: str) -> Live:
        """Have a chat answered that was made of these; to be read for one turn."""
        marks = [(item.id, item.text) for item in items]
        manner = (chat.tools, chat.speaks, chat.voice, instructions)
        known = len(self._known)
        if self._live is None or self._live.is_over or manner != self._manner or marks[:known] != self._known:
            self.close()
            asked = replace(chat, continues=True)
            self._live = self._call.door.open(self._served, asked, by=self._call.passage, goes_on=True)
        else:
            turns = (turn for item in items[known:] if (turn := item.turn) is not None)
            self._live.say(replace(chat, turns=tuple(turns), continues=True))
        self._known, self._manner = marks, manner
        return self._live

    async def hush(self) -> None:
        """Have the answer that is being given ended; nothing more of it comes."""
        if self._live is None or self._live.is_over or not self._listens:
            self.close()
            return
        self._live.say(QUIET)
        try:
            async with asyncio.timeout(QUIET_S):
                async for _ in self._live.turn():
                    pass  # what was on its way
        except (Refusal, TimeoutError, asyncio.CancelledError):
            self._listens = False
            self.close()

    def close(self) -> None:
        """Want no more."""
        if self._live is not None:
            self._live.close()
            self._live = None
