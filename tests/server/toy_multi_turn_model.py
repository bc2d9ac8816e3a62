"""Toy multi-turn chat model that can be interrupted."""

from __future__ import annotations

from typing import Any

from mstar import INTERRUPTED
from mstar.requests import ChatRequest, Finish
from tests.server.toy_voice_model import Talker


class MultiTurnTalker(Talker):
    """Responds with the last message and the number of messages so far, over many turns of one request."""

    async def route(self, request: ChatRequest) -> Finish:
        chat, messages, finish = request, list[Any](), Finish()
        while chat is not None:
            self.seen.append(chat)
            messages += chat.messages
            if chat.messages:
                text = f"{messages[-1].parts[0]} {len(messages)}"
                is_interrupted = await self.say(text, len(text)).interruptible() is INTERRUPTED
                finish = Finish("interrupted" if is_interrupted else "stop", {"text": len(messages)})
            chat = await self.next_input(finish)
        return finish
