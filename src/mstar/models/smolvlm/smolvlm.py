"""SmolVLM: goes on with a conversation in which pictures are shown.

An eye sees each picture, once however often it is asked about, and a writer reads what it saw among the words. It sees
no films, and is told of no tools: a client that must have one called gets it by a grammar.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from mstar import Model, Text, choose, each, loop, walk
from mstar.asks import Chat, Ending, Picture, Turn
from mstar.errors import Unsupported
from mstar.models.smolvlm.checkpoint import PUBLISHED, Checkpoint
from mstar.models.smolvlm.eye import Eye
from mstar.models.smolvlm.reader import Reader
from mstar.models.smolvlm.writer import Writer
from mstar.nn.encoder import Owner
from mstar.nn.sampling import Sampling


class SmolWriter(Model):
    """All that is loaded where nobody shows pictures. `weights` is a folder in the layout of its hub, or `hub:` and a
    name."""

    def __init__(self, weights: str = PUBLISHED) -> None:
        self.checkpoint = Checkpoint(weights)
        self.reader, self.writer = Reader(self.checkpoint), Writer(self.checkpoint)

    @walk
    def write(self, chat: Chat) -> Generator[Text, None, Ending]:
        """Answer to words."""
        tokens, _, most = self.reader.read(chat)
        kv = self.writer.kv()
        first = self.writer.next(tokens, kv, chat.sampling)
        return (yield from self.go_on(chat, tokens, most, first, kv))

    def go_on(self, chat: Chat, tokens: Any, most: int, first: Any, kv: Any) -> Generator[Text, None, Ending]:
        """The part of all walks that begins with the first token of an answer."""
        s = loop(steps=choose(self.writer.is_over(first, kv, chat.sampling), 0, most), token=first)
        for _ in s:
            yield Text(s.token)
            s.token = self.writer.next(s.token, kv, chat.sampling)
            s.stop_when(self.writer.is_over(s.token, kv, chat.sampling))
        return self.writer.ending(tokens, s.token, kv, chat.sampling)

    async def route(self, request: Chat) -> Ending:
        """Answer."""
        if has_pictures(request):
            raise Unsupported("it does not see\n  fix: send text, or serve smolvlm")
        return await self.write(request)

    def warm_ups(self) -> Sequence[Any]:
        """A short conversation."""
        return [Chat((Turn("user", ("Hello.",)),), Sampling(max_tokens=2))]

    def reads(self) -> tuple[type, ...]:
        """What the parts of a conversation may be."""
        return (str,)

    def spell(self, tokens: Sequence[int], /) -> str:
        """Tokens of its answers as text."""
        return self.writer.spell(tokens)


class SmolVlm(SmolWriter):
    """It sees too."""

    def __init__(self, weights: str = PUBLISHED) -> None:
        super().__init__(weights)
        self.eye = Eye(self.checkpoint)

    @walk
    def look(self, chat: Chat) -> Generator[Text, None, Ending]:
        """Answer to words and pictures."""
        tokens, pictures, most = self.reader.read(chat)
        owner, seen = self.eye.state(Owner), each(pictures)
        for picture in seen:
            seen.collect(states=self.eye.see(picture, owner))

        kv = self.writer.kv()
        numbers, given = self.writer.join(tokens, seen.states)
        first = self.writer.next_shown(numbers, given, kv, chat.sampling)
        return (yield from self.go_on(chat, tokens, most, first, kv))

    async def route(self, request: Chat) -> Ending:
        """Answer. Who shows no picture wakes no eye."""
        return await (self.look if has_pictures(request) else self.write)(request)

    def reads(self) -> tuple[type, ...]:
        """What the parts of a conversation may be."""
        return (str, Picture)


def has_pictures(chat: Chat) -> bool:
    """Whether a picture is shown in a conversation."""
    return any(isinstance(part, Picture) for turn in chat.turns for part in turn.parts)
