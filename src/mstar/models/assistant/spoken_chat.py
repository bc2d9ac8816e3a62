"""Spoken chat: the SmolLM2 and Hibari half of the assistant, with interruption and multi-turn KV reuse.

The `talk` walk overlaps two loops: the language model writes the next sentence while the TTS synthesizes the last one.
The KV cache keeps the conversation between turns. Audio input is transcribed by the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace

from mstar import (
    INTERRUPTED,
    KV,
    Audio,
    Int64,
    Model,
    Stream,
    Tensor,
    Text,
    WordTimestamps,
    choose,
    loop,
    walk,
    windows,
)
from mstar.models.hibari.tts import SAMPLE_RATE_HZ, HibariTts, SpeechPosition
from mstar.models.smollm2.smollm2 import LanguageModel
from mstar.requests import ChatRequest, Finish, Message, SpeechRequest


class SpokenChat(Model):
    """Mixin for models that have a language model `lm` and a synthesizer `tts`."""

    lm: LanguageModel
    tts: HibariTts

    @walk
    def prompt(self, chat: ChatRequest) -> tuple[Int64[Tensor, "T"], int]:
        """Tokenize a conversation, and return the maximum number of tokens of the answer."""
        return self.lm.prompt(chat)

    @walk
    def read(self, tokens: Int64[Tensor, "T"], kv: KV) -> None:
        """Prefill tokens without sampling."""
        self.lm.append(tokens, kv)

    @walk
    def talk(
        self, last_token: Int64[Tensor, "1"], max_tokens: int, chat: ChatRequest, speech: SpeechRequest, kv: KV
    ) -> Generator[Text | Audio | WordTimestamps, None, Finish]:
        """Emit the answer as text, and each sentence as audio with its words while the next one is decoded."""
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
        position = self.tts.state(SpeechPosition)
        for window in windows(sentences, size=1):
            audio, words = self.tts.synthesize(window[0], speech, 0, position)
            yield WordTimestamps(words)
            yield Audio(audio, rate=SAMPLE_RATE_HZ)
        return self.lm.finish(last_token, s.token, kv, chat.sampling)

    async def converse(self, chat: ChatRequest, transcribe_message: Callable[[Message], Awaitable[Message]]) -> Finish:
        """Answer every turn until the client closes the conversation. `transcribe_message` turns audio parts into text.

        The KV cache holds the conversation before the answer; the answer is decoded on a fork. The next turn reads the
        part of the answer that the client received, so an interruption at any token needs no special case. The prefix
        cache has that part: it is attached, not computed again.
        """
        kv, cached, messages = self.lm.kv(), list[int](), list[Message]()
        while True:
            messages += [await transcribe_message(message) for message in chat.messages]
            chat = replace(chat, messages=tuple(messages))
            tokens, max_tokens = await self.prompt(chat)
            prompt = tokens.tolist()
            if prompt[: len(cached)] != cached:
                kv, cached = self.lm.kv(), []
            if len(cached) < len(prompt) - 1:
                await self.read(tokens[len(cached) : -1], kv)
            cached, speech = prompt[:-1], SpeechRequest("", chat.voice, seed=chat.sampling.seed)
            result = await self.talk(tokens[-1:], max_tokens, chat, speech, kv.fork()).interruptible()
            finish = (
                Finish("interrupted") if result is INTERRUPTED else replace(result, prompt_tokens={"text": len(prompt)})
            )
            following = await self.next_input(finish) if chat.multi_turn else None
            while following is not None and not following.messages:  # only an interruption, without a new turn
                following = await self.next_input(finish)
            if following is None:
                return finish
            chat = following
