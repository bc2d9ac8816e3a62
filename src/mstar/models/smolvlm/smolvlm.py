"""SmolVLM: goes on with a conversation in which pictures are shown.

An eye sees each picture, once however often it is asked about, and a writer reads what it saw among the words. It sees
no films, and is told of no tools: a client that must have one called gets it by a grammar.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from mstar import Model, Text, choose, each, loop, walk
from mstar.errors import Unsupported
from mstar.models.smolvlm.checkpoint import DEFAULT_WEIGHTS, Checkpoint
from mstar.models.smolvlm.language_model import LanguageModel
from mstar.models.smolvlm.processor import Processor
from mstar.models.smolvlm.vision_encoder import VisionEncoder
from mstar.nn.encoder import TenantState
from mstar.requests import ChatRequest, Finish, ImageInput, Message, Sampling


class SmolVlmText(Model):
    """All that is loaded where nobody shows pictures. `weights` is a folder in the layout of its hub, or `hub:` and a
    name."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.checkpoint = Checkpoint(weights)
        self.processor, self.lm = Processor(self.checkpoint), LanguageModel(self.checkpoint)

    @walk
    def write(self, chat: ChatRequest) -> Generator[Text, None, Finish]:
        """Answer to words."""
        tokens, _, most = self.processor.process(chat)
        kv = self.lm.kv()
        first = self.lm.next_token(tokens, kv, chat.sampling)
        return (yield from self.decode_answer(chat, tokens, most, first, kv))

    def decode_answer(
        self, chat: ChatRequest, tokens: Any, max_tokens: int, first_token: Any, kv: Any
    ) -> Generator[Text, None, Finish]:
        """The part of all walks that begins with the first token of an answer."""
        s = loop(steps=choose(self.lm.is_over(first_token, kv, chat.sampling), 0, max_tokens), token=first_token)
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, kv, chat.sampling)
            s.stop_when(self.lm.is_over(s.token, kv, chat.sampling))
        return self.lm.finish(tokens, s.token, kv, chat.sampling)

    async def route(self, request: ChatRequest) -> Finish:
        """Answer."""
        if has_images(request):
            raise Unsupported("it does not see\n  fix: send text, or serve smolvlm")
        return await self.write(request)

    def warmup_requests(self) -> Sequence[Any]:
        """A short conversation."""
        return [ChatRequest((Message("user", ("Hello.",)),), Sampling(max_tokens=2))]

    def input_types(self) -> tuple[type, ...]:
        """What the parts of a conversation may be."""
        return (str,)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        """Tokens of its answers as text."""
        return self.lm.detokenize(tokens)


class SmolVlm(SmolVlmText):
    """It sees too."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        super().__init__(weights)
        self.vision_encoder = VisionEncoder(self.checkpoint)

    @walk
    def write_with_images(self, chat: ChatRequest) -> Generator[Text, None, Finish]:
        """Answer to words and pictures."""
        tokens, pictures, most = self.processor.process(chat)
        owner, seen = self.vision_encoder.state(TenantState), each(pictures)
        for picture in seen:
            seen.collect(states=self.vision_encoder.encode(picture, owner))

        kv = self.lm.kv()
        numbers, given = self.lm.merge_embeddings(tokens, seen.states)
        first = self.lm.next_token_mixed(numbers, given, kv, chat.sampling)
        return (yield from self.decode_answer(chat, tokens, most, first, kv))

    async def route(self, request: ChatRequest) -> Finish:
        """Answer. Who shows no picture wakes no eye."""
        return await (self.write_with_images if has_images(request) else self.write)(request)

    def input_types(self) -> tuple[type, ...]:
        """What the parts of a conversation may be."""
        return (str, ImageInput)


def has_images(chat: ChatRequest) -> bool:
    """Whether a picture is shown in a conversation."""
    return any(isinstance(part, ImageInput) for turn in chat.messages for part in turn.parts)
