"""A toy model that goes on with its client, who may cut it short."""

from __future__ import annotations

from typing import Any

from mstar import CUT
from mstar.asks import Chat, Ending
from tests.server.toys_talk import Talker


class Listener(Talker):
    """Goes on with its client: each answer is how many turns it has heard, and the last of them."""

    async def route(self, request: Chat) -> Ending:
        chat, turns, ending = request, list[Any](), Ending()
        while chat is not None:
            self.seen.append(chat)
            turns += chat.turns
            if chat.turns:
                text = f"{turns[-1].parts[0]} {len(turns)}"
                is_cut = await self.say(text, len(text)).until_more() is CUT
                ending = Ending("cut" if is_cut else "stop", {"text": len(turns)})
            chat = await self.more(ending)
        return ending
