"""A toy model that goes on with its client, who may cut it short."""

from __future__ import annotations

from typing import Any

from mstar import INTERRUPTED
from mstar.requests import ChatRequest, Finish
from tests.server.toy_voice_model import Talker


class MultiTurnTalker(Talker):
    """Goes on with its client: each answer is how many turns it has heard, and the last of them."""

    async def route(self, request: ChatRequest) -> Finish:
        chat, turns, ending = request, list[Any](), Finish()
        while chat is not None:
            self.seen.append(chat)
            turns += chat.messages
            if chat.messages:
                text = f"{turns[-1].parts[0]} {len(turns)}"
                is_cut = await self.say(text, len(text)).interruptible() is INTERRUPTED
                ending = Finish("interrupted" if is_cut else "stop", {"text": len(turns)})
            chat = await self.next_input(ending)
        return ending
