"""Answers that are spoken: SmolLM2 and Hibari, turn by turn, for as long as its hearer goes on.

Each sentence of an answer is said while the next is being written, and an answer ends where its hearer begins to speak.
It hears nothing itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace

from mstar import INTERRUPTED, KV, Audio, Int64, Model, Stream, Tensor, Text, choose, loop, walk, windows
from mstar.models.hibari.tts import SAMPLE_RATE_HZ, HibariTts
from mstar.models.smollm2.smollm2 import LanguageModel
from mstar.requests import ChatRequest, Finish, Message, SpeechRequest


class SpokenChat(Model):
    """What a model needs to answer in speech, that has these two."""

    lm: LanguageModel
    tts: HibariTts

    @walk
    def prompt(self, chat: ChatRequest) -> tuple[Int64[Tensor, "T"], int]:
        """A conversation as tokens, and how many may follow."""
        return self.lm.prompt(chat)

    @walk
    def read(self, tokens: Int64[Tensor, "T"], kv: KV) -> None:
        """Take in what was said."""
        self.lm.hidden_states(tokens, kv)

    @walk
    def talk(
        self, last_token: Int64[Tensor, "1"], max_tokens: int, chat: ChatRequest, speech: SpeechRequest, kv: KV
    ) -> Generator[Text | Audio, None, Finish]:
        """Answer, and say each sentence while the next is being written."""
        sentences = Stream("sentences")
        first = self.lm.next_token(last_token, kv, chat.sampling)
        s = loop(steps=choose(self.lm.is_end(first, chat.sampling), 0, max_tokens), token=first, left=max_tokens)
        for _ in s:
            w = loop(steps=s.left, token=s.token)
            for _ in w:
                yield Text(w.token)
                w.collect(tokens=w.token)
                following = self.lm.next_token(w.token, kv, chat.sampling)
                w.stop_when(self.lm.is_over(following, kv, chat.sampling))
                w.stop_when(self.lm.is_sentence_end(w.token, following))
                w.token = following
            sentence, left, is_full = self.lm.decode_sentence(w.tokens, s.left, chat.sampling)
            sentences.put(sentence)
            s.stop_when(is_full)
            s.stop_when(self.lm.is_over(w.token, kv, chat.sampling))
            s.token, s.left = w.token, left
        for window in windows(sentences, size=1):
            yield Audio(self.tts.synthesize(window[0], speech, 0), rate=SAMPLE_RATE_HZ)
        return self.lm.finish(last_token, s.token, kv, chat.sampling)

    async def converse(self, chat: ChatRequest, transcribe_message: Callable[[Message], Awaitable[Message]]) -> Finish:
        """Answer; and if more will be said, go on from what was heard of the answer. `hear` makes text of a turn.

        The cache holds what was said before an answer, which is given on a copy: as much of it as the hearer has let
        pass is read with the next turn. So it does not matter whether, or where, an answer was cut.
        """
        kv, known, turns = self.lm.kv(), list[int](), list[Message]()
        while True:
            turns += [await transcribe_message(turn) for turn in chat.messages]
            chat = replace(chat, messages=tuple(turns))
            tokens, most = await self.prompt(chat)
            now = tokens.tolist()
            if now[: len(known)] != known:
                kv, known = self.lm.kv(), []
            if len(known) < len(now) - 1:
                await self.read(tokens[len(known) : -1], kv)
            known, manner = now[:-1], SpeechRequest("", chat.voice, seed=chat.sampling.seed)
            ending = await self.talk(tokens[-1:], most, chat, manner, kv.fork()).interruptible()
            told = Finish("interrupted") if ending is INTERRUPTED else replace(ending, prompt_tokens={"text": len(now)})
            following = await self.next_input(told) if chat.multi_turn else None
            while following is not None and not following.turns:  # it was asked to be quiet, and is
                following = await self.next_input(told)
            if following is None:
                return told
            chat = following
