"""Answers that are spoken: SmolLM2 and Hibari, turn by turn, for as long as its hearer goes on.

Each sentence of an answer is said while the next is being written, and an answer ends where its hearer begins to speak.
It hears nothing itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace

from mstar import CUT, KV, Audio, Int64, Model, Stream, Tensor, Text, choose, loop, walk, windows
from mstar.asks import Chat, Ending, Speech, Turn
from mstar.models.voice.smollm2 import Writer
from mstar.models.voice.speaker import RATE, Speaker


class Talker(Model):
    """What a model needs to answer in speech, that has these two."""

    lm: Writer
    speaker: Speaker

    @walk
    def prompt(self, chat: Chat) -> tuple[Int64[Tensor, "T"], int]:
        """A conversation as tokens, and how many may follow."""
        return self.lm.prompt(chat)

    @walk
    def read(self, tokens: Int64[Tensor, "T"], kv: KV) -> None:
        """Take in what was said."""
        self.lm.read(tokens, kv)

    @walk
    def talk(
        self, last: Int64[Tensor, "1"], most: int, chat: Chat, manner: Speech, kv: KV
    ) -> Generator[Text | Audio, None, Ending]:
        """Answer, and say each sentence while the next is being written."""
        sentences = Stream("sentences")
        first = self.lm.next(last, kv, chat.sampling)
        s = loop(steps=choose(self.lm.is_end(first, chat.sampling), 0, most), token=first, left=most)
        for _ in s:
            w = loop(steps=s.left, token=s.token)
            for _ in w:
                yield Text(w.token)
                w.collect(tokens=w.token)
                following = self.lm.next(w.token, kv, chat.sampling)
                w.stop_when(self.lm.is_over(following, kv, chat.sampling))
                w.stop_when(self.lm.is_pause(w.token, following))
                w.token = following
            sentence, left, is_full = self.lm.sentence(w.tokens, s.left, chat.sampling)
            sentences.put(sentence)
            s.stop_when(is_full)
            s.stop_when(self.lm.is_over(w.token, kv, chat.sampling))
            s.token, s.left = w.token, left
        for window in windows(sentences, size=1):
            yield Audio(self.speaker.say(window[0], manner, 0), rate=RATE)
        return self.lm.ending(last, s.token, kv, chat.sampling)

    async def converse(self, chat: Chat, hear: Callable[[Turn], Awaitable[Turn]]) -> Ending:
        """Answer; and if more will be said, go on from what was heard of the answer. `hear` makes text of a turn.

        The cache holds what was said before an answer, which is given on a copy: as much of it as the hearer has let
        pass is read with the next turn. So it does not matter whether, or where, an answer was cut.
        """
        kv, known, turns = self.lm.kv(), list[int](), list[Turn]()
        while True:
            turns += [await hear(turn) for turn in chat.turns]
            chat = replace(chat, turns=tuple(turns))
            tokens, most = await self.prompt(chat)
            now = tokens.tolist()
            if now[: len(known)] != known:
                kv, known = self.lm.kv(), []
            if len(known) < len(now) - 1:
                await self.read(tokens[len(known) : -1], kv)
            known, manner = now[:-1], Speech("", chat.voice, seed=chat.sampling.seed)
            ending = await self.talk(tokens[-1:], most, chat, manner, kv.fork()).until_more()
            told = Ending("cut") if ending is CUT else replace(ending, read={"text": len(now)})
            following = await self.more(told) if chat.continues else None
            while following is not None and not following.turns:  # it was asked to be quiet, and is
                following = await self.more(told)
            if following is None:
                return told
            chat = following
